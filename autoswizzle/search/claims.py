"""Which process works on what, where several share a storage, and what they found.

A claim is a running trial of one Optuna study, stored with its attributes in one transaction. Trial
numbers follow the order of these transactions, so of the live claims to a name the lowest holds;
whoever made another one sees that, and drops its own. A claim ends with its process: on the same
host at once, on another one when its heartbeat has been silent for GRACE_S.
"""

import logging
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import optuna
import sqlalchemy.exc

from autoswizzle.errors import TuneError
from autoswizzle.search.liveness import is_alive, this_process
from autoswizzle.search.storage import (
    GRACE_S,
    HEARTBEAT_S,
    open_storage,
    quiet_optuna,
    storage_errors,
    without_password,
)

STUDY = "autoswizzle claims"
PRESENCE = "presence"  # the claim each process makes to a file that is for one host

_State = optuna.trial.TrialState
_log = logging.getLogger(__name__)


class Claims:
    """The claims of this process in a storage, kept alive by a thread until closed.

    Raises ArgumentError for a malformed URL; TuneError for a storage that can't be used, an SQLite
    file that another host is using among them.
    """

    def __init__(self, storage: str) -> None:
        self._url = storage
        self._held: dict[str, int] = {}  # trial ids
        self._closed = threading.Event()
        with storage_errors(storage), quiet_optuna():
            self._storage = open_storage(storage)
            self._study = optuna.create_study(
                study_name=STUDY, storage=self._storage, load_if_exists=True
            )
            self._study_id = self._storage.get_study_id_from_name(STUDY)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        if storage.startswith("sqlite"):
            try:
                self._require_one_host()
            except BaseException:
                self.close()
                raise

    def claim(self, name: str) -> bool:
        """Whether name is now this process's; False while a live process has it."""
        with storage_errors(self._url):
            if self._live(name):
                return False
            mine = self._add(name)
            if min(self._live(name), default=mine) == mine:
                return True
            self._drop(name)
            return False

    def release(self, name: str) -> None:
        """End this process's claim to name, if it has one."""
        with storage_errors(self._url):
            self._drop(name)

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Claims name, if it can be had, for the block."""
        held = self.claim(name)
        try:
            yield held
        finally:
            if held:
                self.release(name)

    def verdict(self, name: str) -> dict[str, Any] | None:
        """What was stored under name, by any process."""
        with storage_errors(self._url):
            stored = self._storage.get_study_user_attrs(self._study_id).get(name)
        return stored if isinstance(stored, dict) else None

    def save_verdict(self, name: str, verdict: dict[str, Any]) -> None:
        """Store a JSON-ready verdict under name."""
        with storage_errors(self._url):
            self._storage.set_study_user_attr(self._study_id, name, verdict)

    def close(self) -> None:
        """End every claim of this process and close the connections."""
        self._closed.set()
        with suppress(TuneError):  # then the heartbeat's silence ends them
            for name in list(self._held):
                self.release(name)
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _add(self, name: str) -> int:
        """Make a claim; returns its trial number."""
        attributes = {"name": name, "worker": this_process()}
        template = optuna.trial.create_trial(state=_State.RUNNING, user_attrs=attributes)
        trial_id = self._storage.create_new_trial(self._study_id, template)
        self._held[name] = trial_id
        self._storage.record_heartbeat(trial_id)
        return int(self._storage.get_trial_number_from_id(trial_id))

    def _drop(self, name: str) -> None:
        trial_id = self._held.pop(name, None)
        if trial_id is not None:
            with suppress(optuna.exceptions.UpdateFinishedTrialError):  # it was taken over
                self._storage.set_trial_state_values(trial_id, _State.PRUNED)

    def _live(self, name: str) -> dict[int, str]:
        """The hosts of the live claims to name, by trial number."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(self._study)
        return {
            trial.number: trial.user_attrs["worker"]["host"]
            for trial in self._storage.get_all_trials(
                self._study_id, deepcopy=False, states=(_State.RUNNING,)
            )
            if trial.user_attrs["name"] == name
            and is_alive(trial.user_attrs["worker"], trial.datetime_start)
        }

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            for trial_id in list(self._held.values()):
                try:
                    self._storage.record_heartbeat(trial_id)
                except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
                    _log.warning("no heartbeat in %s: %s", without_password(self._url), error)

    def _require_one_host(self) -> None:
        with storage_errors(self._url):
            mine = self._add(PRESENCE)
            live = self._live(PRESENCE)
            first = live[min(live, default=mine)]
        if first != socket.gethostname():
            raise TuneError(
                f"storage {self._url} is in use on host {first} (seen in the last {GRACE_S} s): "
                "an SQLite file serves one host; several need a server, as postgresql://HOST/NAME"
            )
