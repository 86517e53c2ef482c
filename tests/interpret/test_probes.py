"""The measuring kernels read what they should: every chunk, as often as asked."""

import torch

from autoswizzle.kernels.probes import chase, stream


def test_stream_reads_every_chunk_around():
    chunks, block, programs = 5, 32, 6
    buffer = torch.arange(chunks * block, dtype=torch.int32)
    sink = torch.empty(programs * block, dtype=torch.int32)
    stream[(programs,)](buffer, sink, chunks, 2 * chunks + 1, APART=2, SHARE=3, BLOCK=block)
    rows = buffer.view(chunks, block)
    for program, found in enumerate(sink.view(programs, block)):
        first = program // 3 * 2
        assert torch.equal(found, 2 * rows.sum(0) + rows[first])


def test_chase_follows_what_it_reads():
    chunks, block, programs = 4, 32, 3
    buffer = torch.zeros(chunks * block, dtype=torch.int32)
    buffer[2 * block] = 5  # the next read of lane 0 is five words on
    buffer[3 * block + 5] = 7
    sink = torch.empty(programs * block, dtype=torch.int32)
    chase[(programs,)](buffer, sink, chunks, 1, BLOCK=block)
    expected = torch.zeros(block, dtype=torch.int32)
    expected[0] = 7
    expected[5] = 7
    assert torch.equal(sink.view(programs, block), expected.expand(programs, block))
