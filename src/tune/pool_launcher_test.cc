// The launcher against small zygotes in Python: forks, signals, deaths of the zygote, a zygote that
// cannot begin.
#include "tune/pool_launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/manual_clock.h"

namespace cairn::tune {
namespace {

using std::chrono::seconds;

/// A zygote as small as can be: a worker runs the Python text in its variable CODE.
constexpr char kZygote[] = R"(
import json, os, select, signal, sys
control = os.fdopen(3, "rb", buffering=0)
data, children = b"", {}
def send(m): os.write(3, json.dumps(m).encode() + b"\n")
def line():
    global data
    while b"\n" not in data:
        more = control.read(65536)
        if not more: os._exit(0)
        data += more
    text, data = data.split(b"\n", 1)
    return json.loads(text)
size = line()["bytes"]
parts, have = [data], len(data)
while have < size:
    parts.append(control.read(1 << 20) or os._exit(0))
    have += len(parts[-1])
data = b"".join(parts)
payload, data = data[:size], data[size:]
if payload.startswith(b"deaths"):  # before it begins: how many, by what, and a file that counts them
    _, count, by, path = payload.decode().split(" ")
    with open(path, "a") as file: file.write(".")
    if os.path.getsize(path) <= int(count): os.kill(os.getpid(), int(by))
if payload == b"bad":
    send({"op": "failed", "error": "the payload is bad"})
    control.read(1)
    os._exit(1)
send({"op": "ready"})
os.set_blocking(3, False)
r, w = os.pipe(); os.set_blocking(w, False)
signal.signal(signal.SIGCHLD, lambda *_: None); signal.set_wakeup_fd(w)
while True:
    while b"\n" in data:
        text, data = data.split(b"\n", 1)
        m = json.loads(text)
        if m["op"] == "start":
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                exec(m["env"]["CODE"])
                os._exit(0)
            children[pid] = m["id"]
            send({"op": "started", "id": m["id"], "pid": pid})
        else:
            for pid, of in children.items():
                if of == m["id"]: os.kill(pid, m["signal"])
    ready, _, _ = select.select([3, 4, r], [], [])
    if r in ready: os.read(r, 100)
    if 4 in ready:
        for pid in children: os.kill(pid, 9)
        os._exit(0)
    if 3 in ready:
        more = control.read(65536)
        if more == b"": os._exit(0)
        data += more or b""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0: break
        how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
        send({"op": "ended", "id": children.pop(pid), **how})
)";

std::unique_ptr<Launcher> Open(std::string payload = "good") {
  auto launcher = OpenPoolLauncher(
      {.argv = {"/usr/bin/python3", "-c", kZygote}, .payload = std::move(payload)});
  EXPECT_TRUE(launcher.ok()) << launcher.status().ToString();
  return *std::move(launcher);
}

LaunchSpec Spec(const std::string& id, const std::string& code) {
  return {.id = id, .env = {{"CODE", code}}};
}

TEST(PoolLauncher, WorkersEndWithTheirCodesAndSignals) {
  const auto launcher = Open();
  ASSERT_TRUE(launcher->Submit(Spec("a", "os._exit(7)")).ok());
  ASSERT_TRUE(launcher->Submit(Spec("b", "os.kill(os.getpid(), 9)")).ok());
  EXPECT_TRUE(launcher->Submit(Spec("a", "")).Is(Code::kAlreadyExists));
  const auto a = launcher->Wait("a", seconds(30));
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->exit->code, 7);
  EXPECT_FALSE(a->exit->stopped);
  const auto b = launcher->Wait("b", seconds(30));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->exit->signal, SIGKILL);
  EXPECT_TRUE(launcher->Get("c").status().Is(Code::kNotFound));
}

TEST(PoolLauncher, StopTerminatesAndKillsWhatDoesNotListen) {
  const auto launcher = Open();
  ASSERT_TRUE(
      launcher->Submit(Spec("a", "signal.signal(15, signal.SIG_IGN); signal.pause()")).ok());
  ASSERT_TRUE(launcher->Stop("a", std::chrono::milliseconds(100)).ok());
  const auto a = launcher->Wait("a", seconds(30));
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_TRUE(a->exit->stopped);
}

TEST(PoolLauncher, AZygoteThatDiesIsReplacedAndItsWorkersWereStopped) {
  const auto launcher = Open();
  ASSERT_TRUE(launcher->Submit(Spec("a", "os.kill(os.getppid(), 9)")).ok());
  const auto a = launcher->Wait("a", seconds(30));
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->exit->kind, ExitKind::kLost);
  EXPECT_TRUE(a->exit->stopped);
  ASSERT_TRUE(launcher->Submit(Spec("b", "os._exit(0)")).ok());
  const auto b = launcher->Wait("b", seconds(30));
  ASSERT_TRUE(b.ok()) << b.status().ToString();
  EXPECT_TRUE(b->exit->succeeded());
}

/// So often, of that signal, before it has begun.
std::string Dies(int times, int signal) {
  const std::string path = testing::TempDir() + "/zygote_deaths";
  std::filesystem::remove(path);
  return "deaths " + std::to_string(times) + " " + std::to_string(signal) + " " + path;
}

TEST(PoolLauncher, AZygoteThatIsKilledBeforeItHasBegunIsReplaced) {
  const auto launcher = Open(Dies(5, SIGKILL));
  int tries = 0;
  for (bool succeeded = false; !succeeded; ++tries) {
    ASSERT_LE(tries, 5);
    const std::string id = "t." + std::to_string(tries);
    ASSERT_TRUE(launcher->Submit(Spec(id, "os._exit(0)")).ok());
    const auto info = launcher->Wait(id, seconds(30));
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    succeeded = info->exit->succeeded();
    if (succeeded) continue;
    EXPECT_EQ(info->exit->kind, ExitKind::kLost) << info->exit->message;
    EXPECT_TRUE(info->exit->stopped) << "nobody's failure";
  }
}

TEST(PoolLauncher, AZygoteThatDiesOfItselfBeforeItHasBegunIsNot) {
  const auto launcher = Open(Dies(100, SIGSEGV));
  ASSERT_TRUE(launcher->Submit(Spec("a", "")).ok());
  ASSERT_TRUE(launcher->Wait("a", seconds(30)).ok());
  ASSERT_TRUE(launcher->Submit(Spec("b", "")).ok());
  const auto b = launcher->Wait("b", seconds(30));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->exit->kind, ExitKind::kNotStarted);
  EXPECT_EQ(b->exit->message, "the process that workers are forked from ended before it had begun");
}

TEST(PoolLauncher, WhatIsTriedWithoutEndIsRefusedLaterAndLater) {
  ManualClock clock;
  auto opened = OpenPoolLauncher(
      {.argv = {"/usr/bin/python3", "-c", kZygote}, .payload = "bad", .clock = &clock});
  ASSERT_TRUE(opened.ok());
  for (const char* id : {"t.1", "u.1"}) {
    ASSERT_TRUE((*opened)->Submit(Spec(id, "")).ok());
    EXPECT_TRUE((*opened)->Wait(id, seconds(30)).ok()) << "at once";
  }
  Clock::Duration waited{0};
  for (int run = 2; run < 7; ++run) {
    const std::string id = "t." + std::to_string(run);
    ASSERT_TRUE((*opened)->Submit(Spec(id, "")).ok());
    while (
        (*opened)->Wait(id, std::chrono::milliseconds(20)).status().Is(Code::kDeadlineExceeded)) {
      clock.Advance(std::chrono::milliseconds(50));
      waited += std::chrono::milliseconds(50);
    }
  }
  EXPECT_GT(waited, seconds(2)) << "and no processor is kept busy by it";
}

/// Seconds of the processor that this process has used.
double Spent() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
}

TEST(PoolLauncher, ALargePayloadIsSentAsFastAsASmallOneForEachByte) {
  constexpr std::size_t kBytes = 256u << 20;  // data that is bound to a trainable
  const double before = Spent();
  const auto launcher = Open(std::string(kBytes, 'x'));
  const std::string check =
      "os._exit(7 if payload == b'x' * " + std::to_string(kBytes) + " else 1)";
  ASSERT_TRUE(launcher->Submit(Spec("a", check)).ok());
  const auto a = launcher->Wait("a", seconds(120));
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->exit->code, 7);
  EXPECT_LT(Spent() - before, 4.0) << "moving what is left for each piece takes longer";
}

TEST(PoolLauncher, AZygoteThatCannotBeginSaysWhy) {
  const auto launcher = Open("bad");
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(launcher->Submit(Spec(id, "")).ok());
    const auto info = launcher->Wait(id, seconds(30));
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    EXPECT_EQ(info->exit->kind, ExitKind::kNotStarted);
    EXPECT_EQ(info->exit->message, "the payload is bad");
  }
}

TEST(PoolLauncher, TheZygoteIsThereBeforeTheFirstLaunchWhenItIsWantedAtOnce) {
  const std::string began = testing::TempDir() + "/zygote_began";
  std::filesystem::remove(began);
  const auto launcher = OpenPoolLauncher(
      {.argv = {"/usr/bin/python3", "-c",
                "import os, sys; open(sys.argv[1], 'w').close(); os.read(4, 1)", began},
       .payload = "",
       .spawn_at_once = true});
  ASSERT_TRUE(launcher.ok());
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  while (!std::filesystem::exists(began) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(std::filesystem::exists(began));
}

TEST(PoolLauncher, CloseEndsEverything) {
  const auto launcher = Open();
  ASSERT_TRUE(launcher->Submit(Spec("a", "signal.pause()")).ok());
  ASSERT_TRUE(launcher->Close(Launcher::CloseMode::kStopAll).ok());
  EXPECT_TRUE(launcher->Submit(Spec("b", "")).Is(Code::kFailedPrecondition));
  EXPECT_EQ(launcher->Get("a")->state, LaunchState::kEnded);
}

}  // namespace
}  // namespace cairn::tune
