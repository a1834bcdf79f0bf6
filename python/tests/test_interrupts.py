"""Ctrl-C ends every call that waits, also for a server that does not answer."""

import pytest
from children import Child
from hanging_proxy import HangingProxy
from s3_server import Server

import cairn
from cairn import _native


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("s3"))
    server.make_bucket("bucket")
    yield server
    server.stop()


@pytest.fixture
def proxy(server, monkeypatch):
    proxy = HangingProxy(server.port)
    environment = dict(server.environment(), AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxy.port}")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    yield proxy
    proxy.close()


@pytest.fixture
def url(request):
    words = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    return "s3://bucket/" + words.strip("-")


def ends_by_ctrl_c(child, proxy):
    """Interrupts the child in the call whose request is stuck; the server is not back before."""
    child.expect("calling")
    proxy.until_stuck()
    child.interrupt()
    child.expect("interrupted")
    proxy.go_on()


CALLING = """
url = sys.argv[1]
m = cairn.CheckpointManager(url, keep_last=None)
info = m.save(1, {"x": 1}, files={"a.bin": b"abc"}, blocking=True).wait()
m.wait()
print("ready")
sys.stdin.readline()
try:
    print("calling")
    CALL
    print("it came back")
except KeyboardInterrupt:
    print("interrupted")
sys.stdin.readline()
steps = [one.step for one in cairn.CheckpointManager(url, read_only=True).list()]
m.close()
print(steps)
"""


@pytest.mark.parametrize(
    "call",
    [
        "m.list()",
        "m.latest()",
        "m.pin(info.id)",
        "m.unpin(info.id)",
        "m.add_metrics(info.id, {'loss': 1})",
        "cairn.CheckpointManager(url, read_only=True)",
        "cairn._native.newest_whole(url)",
        "cairn._native.user_files(info.path)",
        "cairn._native.fetch_user_file(info.path, 'a.bin', '/dev/null')",
        "cairn._native.fetch_user_files(info.path, ['a.bin'], '', 'check')",
    ],
)
def test_ctrl_c_ends_a_call_whose_request_is_not_answered(proxy, url, call):
    child = Child(CALLING.replace("CALL", call), url)
    child.expect("ready")
    proxy.hang()
    child.tell()
    ends_by_ctrl_c(child, proxy)
    child.tell()
    child.expect("[1]")
    code, _, errors = child.end()
    assert code == 0, errors


def test_a_deletion_that_was_interrupted_goes_on_and_the_next_call_comes_after_it(proxy, url):
    child = Child(
        """
url = sys.argv[1]
m = cairn.CheckpointManager(url, keep_last=None)
infos = [m.save(step, {"x": step}, blocking=True).wait() for step in (1, 2)]
m.wait()
print("ready")
sys.stdin.readline()
for call in (lambda: m.delete(infos[0].id), lambda: m.save(3, {"x": 3}), m.close):
    try:
        print("calling")
        call()
    except KeyboardInterrupt:
        print("interrupted")
print("waiting")
sys.stdin.readline()
m.save(4, {"x": 4}, blocking=True)
print([info.step for info in m.list()])
m.close()
    """,
        url,
    )
    child.expect("ready")
    proxy.hang(b"DELETE")
    child.tell()
    for _ in range(3):
        child.expect("calling")
        proxy.until_stuck()
        child.interrupt()
        child.expect("interrupted")
    child.expect("waiting")
    proxy.go_on()
    child.tell()
    child.expect("[2, 4]")
    code, _, errors = child.end()
    assert code == 0, errors


@pytest.mark.parametrize("call", ["m.wait()", "m.save(3, {})", "m.restore()", "m.close()"])
def test_ctrl_c_ends_a_call_that_waits_for_a_removal(proxy, url, call):
    code = """
url = sys.argv[1]
m = cairn.CheckpointManager(url, keep_last=1)
m.save(1, {"x": 1}, blocking=True)
m.wait()
print("ready")
sys.stdin.readline()
m.save(2, {"x": 2}).wait()
try:
    print("calling")
    CALL
    print("it came back")
except KeyboardInterrupt:
    print("interrupted")
sys.stdin.readline()
m.wait()
print([info.step for info in m.list()])
m.close()
"""
    child = Child(code.replace("CALL", call), url)
    child.expect("ready")
    proxy.hang(b"DELETE")
    child.tell()
    ends_by_ctrl_c(child, proxy)
    child.tell()
    child.expect("[2]")
    code, _, errors = child.end()
    assert code == 0, errors


def test_ctrl_c_ends_the_last_word_of_a_close(proxy, url):
    child = Child(
        """
m = cairn.CheckpointManager(sys.argv[1])
m.save(1, {"x": 1}, blocking=True)
m.wait()
print("ready")
sys.stdin.readline()
try:
    print("calling")
    m.close()
    print("it came back")
except KeyboardInterrupt:
    print("interrupted")
sys.stdin.readline()
    """,
        url,
    )
    child.expect("ready")
    proxy.hang()
    child.tell()
    ends_by_ctrl_c(child, proxy)
    child.tell()
    code, _, errors = child.end()
    assert code == 0, errors
    assert cairn.load(url) == {"x": 1}
    assert _native.newest_whole(url) is not None
