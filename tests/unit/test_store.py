"""cache/store.py: places and their order, damaged content, concurrency, killed writers, export."""

import hashlib
import json
import logging
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoswizzle.cache import files, store
from autoswizzle.cache.entry import SCHEMA, CacheEntry
from autoswizzle.cache.store import CacheStore, export_entries
from autoswizzle.config import TORCH
from autoswizzle.errors import CacheError, SchemaError
from autoswizzle.hardware import DeviceFacts, find_gpu, gpu_from_facts
from autoswizzle.problem import GemmProblem

CURRENT = {"pointer": "aaaa", "torch": ""}.get


def user_store(folder, *read_only, shipped=False):
    return CacheStore(folder, read_only, shipped=shipped)


def write(path, *entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": SCHEMA, "entries": [e.to_dict() for e in entries]}))
    return path


def problem(m=64):
    return GemmProblem(m, 128, 256, "fp16", "nn")


# Putting and getting


def test_put_then_get_in_a_new_store(tmp_path, entry_for):
    entry = entry_for()
    path = user_store(tmp_path).put(entry)
    found = user_store(tmp_path).get(entry.key)
    assert (found.entry, found.place, found.path) == (entry, "user", path)
    assert [file.name for file in tmp_path.iterdir()] == [entry.key.file_name]


def test_a_later_entry_of_one_key_replaces_the_file(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    tuned.put(entry_for())
    tuned.put(entry_for(trials=3))
    assert [stored.entry.trials for stored in tuned.entries()] == [3]


def test_an_entry_holds_only_for_the_current_source(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    entry = entry_for(source="old")
    tuned.put(entry)
    assert tuned.get(entry.key, CURRENT) is None
    assert tuned.get(entry.key).entry == entry
    tuned.put(entry_for(source="aaaa"))
    assert tuned.get(entry.key, CURRENT).entry.key.source == "aaaa"
    assert len(list(tuned.entries())) == 2  # another release still finds its own


def test_a_family_that_does_not_exist_never_holds(tmp_path, entry_for):
    entry = entry_for(source="x", config=replace(entry_for().config, kernel="wgmma"))
    user_store(tmp_path).put(entry)
    assert user_store(tmp_path).get(entry.key, CURRENT) is None


def test_predicted_entries_are_listed_but_not_served(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    entry = entry_for(origin="predicted", torch_us=None, ratio=None)
    tuned.put(entry)
    assert tuned.get(entry.key) is None
    assert tuned.nearest(entry.key).differences == {"origin": ("measured", "predicted")}


def test_places_in_order_of_preference(tmp_path, entry_for, monkeypatch):
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    places = {name: entry_for(trials=i) for i, name in enumerate(("one", "two", "user", "shipped"))}
    write(tmp_path / "one.json", places["one"])
    write(tmp_path / "two" / "any name.json", places["two"])
    write(tmp_path / "user" / "copied.json", places["user"])
    write(tmp_path / "shipped" / "h200.json", places["shipped"])
    key = entry_for().key

    def served(*read_only, user="user"):
        found = user_store(tmp_path / user, *read_only, shipped=True).get(key)
        return found.entry.trials, found.place

    one, two = tmp_path / "one.json", tmp_path / "two"
    assert served(one, two) == (0, "read-only")
    assert served(two, one) == (1, "read-only")
    assert served() == (2, "user")
    assert served(user="none") == (3, "shipped")


def test_new_entries_of_other_processes_are_seen_at_the_next_miss(tmp_path, entry_for):
    reader, writer = user_store(tmp_path), user_store(tmp_path)
    entry = entry_for()
    assert reader.get(entry.key) is None
    writer.put(entry)
    assert reader.get(entry.key).entry == entry


def test_a_hit_reads_its_own_file_alone_and_lists_once(tmp_path, entry_for, monkeypatch):
    writer = user_store(tmp_path)
    entries = [entry_for(problem(m)) for m in (16, 32, 64)]
    for entry in entries:
        writer.put(entry)
    reads, lists = [], []
    read_json, scandir = files.read_json, os.scandir
    monkeypatch.setattr(
        "autoswizzle.cache.index.read_json", lambda path: reads.append(path) or read_json(path)
    )
    monkeypatch.setattr(os, "scandir", lambda path: lists.append(path) or scandir(path))
    reader = user_store(tmp_path)
    for _ in range(2):
        assert reader.get(entries[0].key).entry == entries[0]
    assert [path.name for path in reads] == [entries[0].key.file_name]
    assert len(lists) == 1


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_store_is_a_mapping(data, tmp_path_factory, request):
    build = request.getfixturevalue("entry_for")
    folder = tmp_path_factory.mktemp("store")
    tuned, model = user_store(folder), {}
    for _ in range(data.draw(st.integers(1, 8))):
        m = data.draw(st.sampled_from([1, 2, 3, 4]))
        if data.draw(st.booleans()):
            model[m] = build(problem(m), trials=data.draw(st.integers(0, 9)))
            tuned.put(model[m])
        reader = data.draw(st.sampled_from([tuned, user_store(folder)]))
        found = reader.get(build(problem(m)).key)
        assert (found and found.entry) == model.get(m)
    assert {s.entry.key.problem.m: s.entry for s in tuned.entries()} == model


# Neighbours and near misses


@pytest.mark.parametrize(
    ("m", "low", "high"),
    [(48, 32, 64), (33, 32, 64), (64, 32, None), (128, 64, None), (129, None, None), (8, None, 16)],
)
def test_neighbours_lie_within_a_factor_of_two(tmp_path, entry_for, m, low, high):
    tuned = user_store(tmp_path)
    for tuned_m in (16, 32, 64):
        tuned.put(entry_for(problem(tuned_m)))
    found = tuned.around(entry_for(problem(m)).key, CURRENT)
    assert tuple(stored and stored.entry.key.problem.m for stored in found) == (low, high)


def test_neighbours_agree_in_all_but_m(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    for text in ("64x128x512:fp16:nn", "64x128x256:bf16:nn", "64x128x256:fp16:nt"):
        tuned.put(entry_for(text))
    tuned.put(entry_for("64x128x256:fp16:nn", source="old"))
    assert tuned.around(entry_for(problem(48)).key, CURRENT) == (None, None)


def test_the_nearest_miss_names_what_differs(tmp_path, entry_for, h200):
    tuned = user_store(tmp_path)
    tuned.put(entry_for("64x128x256:fp16:nn"))
    tuned.put(entry_for("64x9999x999:bf16:nt"))
    pcie = gpu_from_facts(DeviceFacts("NVIDIA H100 PCIe", 90, 114, h200.l2_bytes))
    miss = tuned.nearest(entry_for(problem(), gpu=pcie).key, CURRENT)
    assert miss.differences == {"num_sms": (114, 132)}
    assert "num_sms: wanted 114, found 132" in str(miss)
    assert tuned.get(entry_for(problem(), gpu=pcie).key, CURRENT) is None
    assert user_store(tmp_path / "empty").nearest(entry_for().key) is None


def test_of_equally_near_entries_the_closest_in_size_counts(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    for m in (1, 32, 1024):
        tuned.put(entry_for(problem(m)))
    assert tuned.nearest(entry_for(problem(64)).key).differences == {"m": (64, 32)}


# Damaged, foreign and hostile content


def valid_half(entry):
    return entry.to_json().encode()[:300]


DAMAGED = {
    "nothing": b"",
    "cut": b"{",
    "not text": b"\xff\xfe\x00",
    "zeros": bytes(2**20),
    "null": b"null",
    "list": b"[]",
    "number": b"5",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "foreign": b'{"name": "package", "version": "1.0"}',
    "long number": b"9" * 100_000,
    "nan": b'{"schema": NaN}',
    "nested entries": b'{"entries": [[], null, {"entries": []}]}',
    "html": b"<html></html>",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_content_is_one_warning_and_a_miss(tmp_path, entry_for, caplog, content):
    entry, sibling = entry_for(), entry_for(problem(128))
    user_store(tmp_path).put(sibling)
    path = tmp_path / entry.key.file_name
    path.write_bytes(content)
    tuned = user_store(tmp_path)
    for _ in range(3):
        assert tuned.get(entry.key) is None
    assert tuned.get(sibling.key).entry == sibling
    assert path.read_bytes() == content
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert len(record.getMessage()) < 300 + len(str(path)) + 100


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_writer_keeps_damaged_bytes_aside(tmp_path, entry_for, content):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    path.write_bytes(content)
    user_store(tmp_path).put(entry)
    assert user_store(tmp_path).get(entry.key).entry == entry
    [aside] = [file for file in tmp_path.iterdir() if file != path]
    assert aside.read_bytes() == content


def test_half_a_valid_file(tmp_path, entry_for):
    entry = entry_for()
    (tmp_path / entry.key.file_name).write_bytes(valid_half(entry))
    assert user_store(tmp_path).get(entry.key) is None


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_could_not_be_written_again_is_not_read(tmp_path, entry_for, number):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    text = json.dumps({**entry.to_dict(), "later": "a number"})
    path.write_text(text.replace('"a number"', "1e9"))
    assert user_store(tmp_path).get(entry.key).entry == entry
    path.write_text(text.replace('"a number"', number))
    assert user_store(tmp_path).get(entry.key) is None


def test_a_byte_order_mark_is_read_normally(tmp_path, entry_for, caplog):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    path.write_bytes(b"\xef\xbb\xbf" + entry.to_json().encode())
    assert user_store(tmp_path).get(entry.key).entry == entry
    assert not caplog.records


def test_one_bad_entry_of_a_collection_leaves_its_siblings(tmp_path, entry_for, caplog):
    good = entry_for()
    path = write(tmp_path / "all.json", good)
    content = json.loads(path.read_text())
    content["entries"].append({"schema": SCHEMA})
    path.write_text(json.dumps(content))
    assert user_store(tmp_path / "none", path).get(good.key).entry == good
    assert "1 of 2 entries" in caplog.text


def test_a_file_under_another_keys_name_is_not_obeyed(tmp_path, entry_for, caplog):
    entry, other = entry_for(), entry_for(problem(128))
    (tmp_path / other.key.file_name).write_text(entry.to_json())
    assert user_store(tmp_path).get(other.key) is None
    assert "its name belongs to another key" in caplog.text


def test_a_huge_file_is_not_read(tmp_path, entry_for, caplog, monkeypatch):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    with path.open("wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(json, "loads", lambda *args, **kw: pytest.fail("it was read"))
    assert user_store(tmp_path).get(entry.key) is None
    assert f"{2**40} bytes" in caplog.text


def test_a_pipe_does_not_block(tmp_path, entry_for, caplog):
    entry = entry_for()
    os.mkfifo(tmp_path / entry.key.file_name)
    assert user_store(tmp_path).get(entry.key) is None
    assert "not a regular file" in caplog.text


def test_a_folder_under_an_entrys_name(tmp_path, entry_for, caplog):
    entry = entry_for()
    (tmp_path / entry.key.file_name).mkdir()
    tuned = user_store(tmp_path)
    assert tuned.get(entry.key) is None
    assert len(caplog.records) == 1
    with pytest.raises(CacheError, match="cannot"):
        tuned.put(entry)
    assert tuned.get(entry.key).entry == entry  # still served by this process


@pytest.mark.parametrize("schema", [None, SCHEMA - 1])
def test_an_older_schema_is_a_miss_and_makes_way(tmp_path, entry_for, caplog, schema):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    path.write_text(json.dumps({**entry.to_dict(), "schema": schema}))
    tuned = user_store(tmp_path)
    assert tuned.get(entry.key) is None
    assert f"schema must be {SCHEMA}, got {schema}" in caplog.text
    tuned.put(entry)
    assert user_store(tmp_path).get(entry.key).entry == entry


def test_a_newer_schema_is_never_overwritten(tmp_path, entry_for, caplog):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    path.write_text(json.dumps({**entry.to_dict(), "schema": 999}))
    before = path.read_bytes()
    tuned = user_store(tmp_path)
    assert tuned.get(entry.key) is None
    assert f"schema must be {SCHEMA}, got 999" in caplog.text
    with pytest.raises(SchemaError, match="999"):
        tuned.put(entry)
    assert path.read_bytes() == before
    assert tuned.get(entry.key).entry == entry


def test_unknown_fields_survive_a_rewrite(tmp_path, entry_for):
    entry = entry_for()
    path = tmp_path / entry.key.file_name
    path.write_text(json.dumps({**entry.to_dict(), "later": 1, "versions": None}))
    tuned = user_store(tmp_path)
    assert tuned.get(entry.key) is not None
    tuned.put(replace(entry, trials=7))
    data = json.loads(path.read_text())
    assert (data["later"], data["trials"]) == (1, 7)
    assert data["versions"] == dict(entry.versions)


def test_a_fastest_that_can_not_be_read_goes_with_its_measurement(tmp_path, entry_for):
    """A later release would take it for what the new verdict measured."""
    entry = entry_for(config=TORCH, ratio=1.0, ratio_low=None, ratio_high=None)
    path = tmp_path / entry.key.file_name
    later = {"fastest": {"kernel": "later"}, "fastest_ratio": 1.01}
    path.write_text(json.dumps({**entry.to_dict(), **later, "note": 1}))
    tuned = user_store(tmp_path)
    tuned.put(CacheEntry.from_json(path.read_text()))
    assert json.loads(path.read_text()).items() >= later.items()
    tuned.put(replace(entry, trials=99))
    data = json.loads(path.read_text())
    assert (data["note"], data["trials"]) == (1, 99)
    assert not later.keys() & data.keys()


# Places that can't be used


def test_a_missing_user_folder_is_silent(tmp_path, entry_for, caplog):
    assert user_store(tmp_path / "none").get(entry_for().key) is None
    assert not caplog.records
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("make", [lambda file: file, lambda file: file / "below"])
def test_an_unwritable_folder_serves_what_was_put_here(tmp_path, entry_for, caplog, make):
    (tmp_path / "file").write_text("text")
    folder = make(tmp_path / "file")
    tuned = user_store(folder)
    assert tuned.get(entry_for().key) is None
    assert len(caplog.records) == 1
    assert str(folder) in caplog.text
    with pytest.raises(CacheError, match=str(folder)):
        tuned.check_writable()
    with pytest.raises(CacheError, match=str(folder)):
        tuned.put(entry_for())
    assert tuned.get(entry_for().key).entry == entry_for()
    assert (tmp_path / "file").read_text() == "text"


def test_a_missing_read_only_place_is_one_warning(tmp_path, entry_for, caplog):
    tuned = user_store(tmp_path, tmp_path / "nowhere.json")
    for _ in range(3):
        assert tuned.get(entry_for().key) is None
    assert len(caplog.records) == 1
    assert "nowhere.json" in caplog.text


def test_a_writable_folder_is_created_and_left_empty(tmp_path):
    user_store(tmp_path / "a" / "b").check_writable()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_adding_a_read_only_place(tmp_path, entry_for):
    tuned = user_store(tmp_path / "user")
    tuned.put(entry_for(trials=1))
    assert tuned.add_read_only(write(tmp_path / "mine.json", entry_for(trials=2))) == 1
    assert tuned.get(entry_for().key).entry.trials == 2
    with pytest.raises(CacheError, match="No such file"):
        tuned.add_read_only(tmp_path / "none")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CacheError, match="not JSON"):
        tuned.add_read_only(tmp_path / "bad.json")


def test_a_full_disk_leaves_the_old_file(tmp_path, entry_for, monkeypatch):
    tuned, entry = user_store(tmp_path), entry_for()
    path = tuned.put(entry)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError, match="No space left"):
        tuned.put(replace(entry, trials=99))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert tuned.get(entry.key).entry.trials == 99  # served, though not kept


# Links and modes


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path, entry_for):
    entry = entry_for()
    link, target = tmp_path / "cache" / entry.key.file_name, tmp_path / "shared" / "target.json"
    target.parent.mkdir()
    link.parent.mkdir()
    link.symlink_to(target)  # dangling
    tuned = user_store(link.parent)
    assert tuned.get(entry.key) is None
    tuned.put(entry)
    tuned.put(replace(entry, trials=5))
    assert link.is_symlink()
    assert CacheEntry.from_json(target.read_text()).trials == 5
    assert user_store(link.parent).get(entry.key).entry.trials == 5


def test_modes_follow_the_umask_and_an_existing_mode_stays(tmp_path, entry_for):
    old = os.umask(0o027)
    try:
        path = user_store(tmp_path).put(entry_for())
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o664)
        user_store(tmp_path).put(entry_for(trials=2))
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    finally:
        os.umask(old)


# Several processes


def _store_many(folder, entries, barrier):
    tuned = user_store(folder)
    barrier.wait()
    for entry in entries:
        tuned.put(entry)


def test_eight_writers_lose_nothing(tmp_path, entry_for):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    shared = problem(4096)
    work = [
        [entry_for(problem(8 * writer + i + 1)) for i in range(4)]
        + [entry_for(shared, trials=writer)]
        for writer in range(8)
    ]
    writers = [context.Process(target=_store_many, args=(tmp_path, e, barrier)) for e in work]
    for process in writers:
        process.start()
    seen = 0
    while any(process.is_alive() for process in writers):
        for path in tmp_path.glob("*.json"):
            CacheEntry.from_json(path.read_text())  # never torn, never missing
            seen += 1
    assert seen
    assert [process.exitcode for process in writers] == [0] * 8
    found = {stored.entry.key.problem.m for stored in user_store(tmp_path).entries()}
    assert found == {e.key.problem.m for entries in work for e in entries}
    assert len(list(tmp_path.iterdir())) == 33  # no temporary file is left


def _export_many(path, entries, barrier):
    barrier.wait()
    for entry in entries:
        export_entries(path, [entry])


def test_eight_exports_into_one_file_are_united(tmp_path, entry_for):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    path = tmp_path / "all.json"
    work = [[entry_for(problem(8 * writer + i + 1)) for i in range(5)] for writer in range(8)]
    writers = [context.Process(target=_export_many, args=(path, e, barrier)) for e in work]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    found = {entry["key"]["problem"]["m"] for entry in json.loads(path.read_text())["entries"]}
    assert found == {e.key.problem.m for entries in work for e in entries}
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.store import CacheStore
from dataclasses import replace
from pathlib import Path
from pathlib import Path
entry = CacheEntry.from_json(Path(sys.argv[2]).read_text())
store = CacheStore(Path(sys.argv[1]), shipped=False)
m = 0
while True:
    m += 1
    key = replace(entry.key, problem=replace(entry.key.problem, m=m))
    store.put(replace(entry, key=key))
    print(m, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_loses_no_stored_entry(tmp_path, entry_for, how):
    folder, template = tmp_path / "cache", tmp_path / "template"
    template.write_text(entry_for().to_json())
    dice = random.Random(5)
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(folder), str(template)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            writer.stdout.readline()
            time.sleep(dice.uniform(0, 0.2))
            writer.send_signal(how)
            stored = writer.stdout.read().split()
        for path in folder.glob("*.json"):
            CacheEntry.from_json(path.read_text())
        tuned = user_store(folder)
        for m in (1, *map(int, stored)):
            assert tuned.get(entry_for(problem(m)).key) is not None
        before = time.monotonic()
        tuned.put(entry_for(problem(99999)))
        assert time.monotonic() - before < 2


# Export and merge


def test_an_export_is_sorted_readable_and_repeatable(tmp_path, entry_for):
    entries = [entry_for(problem(m)) for m in (256, 16, 1024, 2)]
    export_entries(tmp_path / "one.json", entries)
    export_entries(tmp_path / "two.json", reversed(entries))
    text = (tmp_path / "one.json").read_text()
    assert text == (tmp_path / "two.json").read_text()
    found = [entry["key"]["problem"]["m"] for entry in json.loads(text)["entries"]]
    assert found == [2, 16, 256, 1024]
    assert user_store(tmp_path / "none", tmp_path / "one.json").get(entries[0].key) is not None


def test_a_merge_keeps_the_better_measured_entry_and_unknown_fields(tmp_path, entry_for):
    path = write(tmp_path / "all.json", entry_for(trials=10), entry_for(problem(2)))
    content = {**json.loads(path.read_text()), "note": "mine"}
    path.write_text(json.dumps(content))
    assert export_entries(path, [entry_for(trials=5), entry_for(problem(3))]) == 3
    assert export_entries(path, [entry_for(trials=11)]) == 3
    content = json.loads(path.read_text())
    assert content["note"] == "mine"
    assert [entry["trials"] for entry in content["entries"]] == [40, 40, 11]


@pytest.mark.parametrize("content", [b'{"name": "package"}', b"{", b"[]", b""])
def test_a_foreign_file_is_refused_and_left(tmp_path, entry_for, content):
    path = tmp_path / "package.json"
    path.write_bytes(content)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(CacheError, match=r"package\.json"):
        export_entries(path, [entry_for()])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_an_export_that_no_reader_would_take_is_refused(tmp_path, entry_for, monkeypatch):
    path = tmp_path / "c.json"
    export_entries(path, [entry_for()])
    before = path.read_bytes()
    monkeypatch.setattr(store, "MAX_BYTES", len(before))
    assert export_entries(path, [entry_for()]) == 1
    with pytest.raises(
        CacheError, match=f"cannot write .*c.json: 2 entries in .* {len(before)} read"
    ):
        export_entries(path, [entry_for("65x128x256:fp16:nn")])
    assert path.read_bytes() == before


def test_an_export_to_a_device_or_below_a_file_names_the_path(tmp_path, entry_for):
    (tmp_path / "file").write_text("")
    for path in ("/dev/full", tmp_path / "file" / "x.json"):
        with pytest.raises(CacheError, match="cannot write"):
            export_entries(Path(path), [entry_for()])
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_the_shipped_files_hold_usable_entries(caplog):
    with suppress(StopIteration):
        next(CacheStore(Path("/nonexistent")).entries())
    assert not caplog.records


def test_h100_variants_do_not_share(tmp_path, entry_for):
    tuned = user_store(tmp_path)
    sxm = find_gpu("H100 SXM")
    tuned.put(entry_for(gpu=sxm))
    assert tuned.get(entry_for(gpu=replace(sxm, name="NVIDIA H100 80GB HBM3")).key) is not None
    for sms, mib in ((114, 50), (60, 25)):
        other = gpu_from_facts(DeviceFacts("NVIDIA H100", 90, sms, mib * 2**20))
        assert tuned.get(entry_for(gpu=other).key) is None
        assert "num_sms" in tuned.nearest(entry_for(gpu=other).key).differences


def test_every_rank_finds_the_same_of_equal_entries(tmp_path, entry_for, monkeypatch):
    """A folder is listed in the order that its file system likes, another one on each host."""
    entry = entry_for()
    for stages in (2, 3, 4):
        config = replace(entry.config, num_stages=stages)
        write(tmp_path / f"{stages}.json", replace(entry, config=config))
    real, found = os.scandir, set()
    for seed in range(10):

        class Shuffled:
            def __init__(self, path, seed=seed):
                with real(path) as listing:
                    self.items = list(listing)
                random.Random(seed).shuffle(self.items)

            def __enter__(self):
                return iter(self.items)

            def __exit__(self, *_):
                pass

        monkeypatch.setattr(os, "scandir", Shuffled)
        found.add(user_store(tmp_path / "none", tmp_path).get(entry.key).entry.config)
    assert len(found) == 1
