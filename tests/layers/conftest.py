"""What the tests of training kernels share."""

import pytest
import torch


def capture_and_check_masks(run, check):
    """Capture `run() -> (output, gradient)`, which drops out, as a CUDA graph. Require that each replay draws a new mask, and the
    same one after the same seed, and call `check(output, gradient)` after replays."""
    stream, graph, replays = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        with torch.cuda.graph(graph, stream=stream):
            output, gradient = run()
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            graph.replay()
            replays.append(output.clone())
            check(output, gradient)
            graph.replay()
            assert not torch.equal(output, replays[-1])
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(replays[0], replays[2]) and not torch.equal(replays[0], replays[1])


@pytest.fixture
def check_captured_masks():
    """`capture_and_check_masks`, for test modules, which cannot import this one."""
    return capture_and_check_masks
