// The interleavings that matter most, once more with real processes on a real disk: processes are
// stopped (SIGSTOP) at a named step of the protocol, others go on, then they are continued. The
// processes are told what to do line by line (stepping_process.cc); waiting is for an answer, for a
// stop or for an end, never for a time.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/manager.h"
#include "checkpoint/repository.h"

namespace cairn::interleaving {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "cairn-stop-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string repository() const { return (path_ / "repository").string(); }

 private:
  fs::path path_;
};

/// A stepping_process of ours. Ended (by its pid) when the test lets go of it.
class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    const char* bin = std::getenv("CAIRN_BIN_DIR");
    const std::string program = std::string(bin == nullptr ? "." : bin) + "/stepping_process";
    int in[2];
    int out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = fdopen(out[0], "r");
  }
  ~Process() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(in_);
    fclose(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    ASSERT_EQ(write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// The next line that it says; "" when it ended.
  std::string Answer() {
    std::string line;
    for (int c = fgetc(out_); c != EOF && c != '\n'; c = fgetc(out_)) line += static_cast<char>(c);
    return line;
  }
  std::string Ask(const std::string& line) {
    Tell(line);
    return Answer();
  }

  /// Waits until it has stopped itself; false when it ended instead.
  bool WaitStopped() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ended_ = !WIFSTOPPED(status);
    return !ended_;
  }
  void Continue() { EXPECT_EQ(kill(pid_, SIGCONT), 0); }
  /// Its exit code, -1 for a signal.
  int WaitEnd() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  FILE* out_ = nullptr;
  bool ended_ = false;
};

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}
std::string Word(const std::string& line, std::size_t index) {
  const auto words = Words(line);
  return index < words.size() ? words[index] : "";
}

class StoppedProcessTest : public testing::Test {
 protected:
  std::unique_ptr<Process> Start(std::vector<std::string> args = {}) {
    args.insert(args.begin(), {"--dir", dir_.repository()});
    return std::make_unique<Process>(std::move(args));
  }
  /// Opens, does these things, closes; gives back the last answer but one.
  std::string RunToEnd(const std::vector<std::string>& lines, std::vector<std::string> args = {}) {
    auto process = Start(std::move(args));
    std::string last = process->Answer();
    EXPECT_EQ(Word(last, 0), "opened") << last;
    for (const std::string& line : lines) last = process->Ask(line);
    EXPECT_EQ(process->Ask("quit"), "ok");
    EXPECT_EQ(process->WaitEnd(), 0);
    return last;
  }
  RepositoryView Read() {
    auto env = EnvironmentAt(dir_.repository(), {.create = false});
    EXPECT_TRUE(env.ok());
    auto view = RepositoryReader(env->store.get()).Read();
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? *std::move(view) : RepositoryView();
  }
  static bool Counts(const RepositoryView& view, const std::string& id) {
    const Checkpoint* checkpoint = view.Find(id);
    return checkpoint != nullptr && checkpoint->counts;
  }
  void ExpectWhole() {
    auto report = Verify(dir_.repository(), /*deep=*/true);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (const VerifyProblem& problem : report->problems) {
      ADD_FAILURE() << problem.checkpoint << ": " << problem.what;
    }
  }

  TempDir dir_;
};

/// The steps of a single writer, in order; "open: cairn.json" only in a fresh directory.
const char* const kOpenSteps[] = {"open: lock", "open: cairn.json", "open: fence", "open: seal",
                                  "open: sweep"};
const char* const kSaveSteps[] = {"save: plan",      "save: snapshot",   "save: claim",
                                  "save: write",     "save: link",       "save: recycle",
                                  "save: sync data", "save: sync names", "save: manifest",
                                  "save: fence",     "acknowledge",      "retention",
                                  "remove: note",    "remove: fence",    "remove: manifest",
                                  "remove: pool",    "remove: files",    "idle"};

class StoppedWhileOpening : public StoppedProcessTest,
                            public testing::WithParamInterface<const char*> {};

TEST_P(StoppedWhileOpening, IsFencedOrBecomesTheNewerWriter) {
  const std::string step = GetParam();
  const bool fresh = step == "open: cairn.json";
  if (!fresh) RunToEnd({"save 10 10"});

  auto stopped = Start({"--takeover", "--stop-at", step});
  ASSERT_TRUE(stopped->WaitStopped()) << "never came to \"" << step << "\"";
  auto overtaker = Start({"--takeover"});
  ASSERT_EQ(Word(overtaker->Answer(), 0), "opened");
  const std::string saved = overtaker->Ask("save 100 100");
  ASSERT_EQ(Word(saved, 0), "saved") << saved;

  stopped->Continue();
  const std::string opened = stopped->Answer();
  // Before its fence was there, nobody overtook it: it takes a number above the other's.
  const bool newer = step == "open: lock" || fresh || step == "open: fence";
  if (newer) {
    EXPECT_EQ(Word(opened, 0), "opened") << opened;
    EXPECT_EQ(Word(stopped->Ask("restore"), 2), "100");
    const std::string second = stopped->Ask("save 110 110");
    EXPECT_EQ(Word(second, 0), "saved") << second;
    EXPECT_EQ(Word(overtaker->Ask("save 120 120"), 1), "Aborted");
    EXPECT_EQ(Read().Latest()->manifest->id, Word(second, 2));
  } else {
    EXPECT_EQ(Word(opened, 0) + " " + Word(opened, 1), "error Aborted") << opened;
    EXPECT_EQ(stopped->WaitEnd(), 1);
    EXPECT_EQ(Word(overtaker->Ask("save 120 120"), 0), "saved");
    EXPECT_EQ(Read().Latest()->manifest->step, 120);
  }
  EXPECT_TRUE(Counts(Read(), Word(saved, 2)));
  ExpectWhole();
}

INSTANTIATE_TEST_SUITE_P(Steps, StoppedWhileOpening, testing::ValuesIn(kOpenSteps));

class StoppedWhileSaving : public StoppedProcessTest,
                           public testing::WithParamInterface<const char*> {};

TEST_P(StoppedWhileSaving, NeverAcknowledgesOnceOvertakenAndItsCommitCountsOnlyIfTheSealNamesIt) {
  const std::string step = GetParam();
  RunToEnd({"save 10 10"});

  auto stopped = Start({"--keep-last", "1"});
  const std::string opened = stopped->Answer();
  ASSERT_EQ(Word(opened, 0), "opened") << opened;
  const std::uint64_t generation = std::stoull(Word(opened, 1));
  // Two saves before: so that there is something to link to, to recycle and to remove.
  std::vector<std::string> acknowledged;
  for (const char* save : {"save 20 20", "save 30 30"}) {
    const std::string saved = stopped->Ask(save);
    ASSERT_EQ(Word(saved, 0), "saved") << saved;
    acknowledged.push_back(Word(saved, 2));
  }
  ASSERT_EQ(stopped->Ask("stop " + step), "ok");
  stopped->Tell("save 40 40");
  ASSERT_TRUE(stopped->WaitStopped()) << "never came to \"" << step << "\"";

  auto overtaker = Start({"--takeover"});
  ASSERT_EQ(Word(overtaker->Answer(), 0), "opened");
  const std::string restored = overtaker->Ask("restore");
  ASSERT_EQ(Word(restored, 0), "restored") << restored;
  EXPECT_GE(std::stoi(Word(restored, 1)), 30);
  const std::string saved = overtaker->Ask("save 100 100");
  ASSERT_EQ(Word(saved, 0), "saved") << saved;
  const RepositoryView before = Read();
  ASSERT_TRUE(before.newest_seal.has_value());
  const std::set<std::string> sealed(before.newest_seal->commits.begin(),
                                     before.newest_seal->commits.end());

  stopped->Continue();
  const std::string answer = stopped->Answer();
  // From its own look at the fence on it may tell its caller: nobody had overtaken it then.
  const std::vector<std::string> after_the_look = {
      "acknowledge",      "retention",    "remove: note",  "remove: fence",
      "remove: manifest", "remove: pool", "remove: files", "idle"};
  const bool told =
      std::find(after_the_look.begin(), after_the_look.end(), step) != after_the_look.end();
  if (told) {
    EXPECT_EQ(Word(answer, 0), "saved") << answer;
    EXPECT_TRUE(sealed.contains(Word(answer, 2))) << "acknowledged, but the seal does not name it";
  } else {
    EXPECT_EQ(Word(answer, 0) + " " + Word(answer, 1), "error Aborted") << answer;
  }
  const std::string next = stopped->Ask("save 50 50");
  EXPECT_EQ(Word(next, 0) + " " + Word(next, 1), "error Aborted") << next;
  EXPECT_NE(next.find("pid " + std::to_string(overtaker->pid())), std::string::npos)
      << "does not say by whom: " << next;

  const RepositoryView after = Read();
  for (const Checkpoint& checkpoint : after.checkpoints) {
    if (checkpoint.manifest->generation != generation) continue;
    EXPECT_EQ(checkpoint.counts, sealed.contains(checkpoint.manifest->id)) << checkpoint.directory;
  }
  for (const std::string& id : sealed) {
    EXPECT_TRUE(Counts(after, id)) << "the seal names it, and it is gone";
  }
  EXPECT_EQ(after.Latest()->manifest->id, Word(saved, 2));
  ExpectWhole();
  EXPECT_EQ(Word(overtaker->Ask("save 110 110"), 0), "saved");
  EXPECT_EQ(overtaker->Ask("quit"), "ok");
  EXPECT_EQ(Word(RunToEnd({"restore"}, {"--takeover"}), 1), "110");
}

INSTANTIATE_TEST_SUITE_P(Steps, StoppedWhileSaving, testing::ValuesIn(kSaveSteps));

TEST_F(StoppedProcessTest, ALateRankOfAnAbandonedAttemptDoesNoHarmAndTakesPartInTheNext) {
  const std::vector<std::string> common = {"--world-size", "2"};
  auto rank_args = [&](const char* rank) {
    std::vector<std::string> args = common;
    args.insert(args.end(), {"--rank", rank});
    return args;
  };
  auto rank0 = Start(rank_args("0"));
  auto rank1 = Start(rank_args("1"));
  ASSERT_EQ(Word(rank0->Answer(), 0), "opened");
  ASSERT_EQ(Word(rank1->Answer(), 0), "opened");
  rank0->Tell("save 10 10");
  rank1->Tell("save 10 11");
  const std::string first = rank0->Answer();
  ASSERT_EQ(Word(first, 0), "saved") << first;
  ASSERT_EQ(rank1->Answer(), first);

  ASSERT_EQ(rank1->Ask("stop save: write"), "ok");
  rank1->Tell("save 20 21");
  rank0->Tell("save 20 20");
  ASSERT_TRUE(rank1->WaitStopped());
  // Rank 1 has seen the announcement, so that rank 0's time runs: it is up.
  ASSERT_EQ(::kill(rank0->pid(), SIGUSR1), 0);
  const std::string given_up = rank0->Answer();
  EXPECT_EQ(Word(given_up, 1), "DeadlineExceeded") << given_up;
  EXPECT_NE(given_up.find("rank_1"), std::string::npos) << given_up;

  rank1->Continue();
  const std::string late = rank1->Answer();
  EXPECT_EQ(Word(late, 0), "error") << late;
  const RepositoryView view = Read();
  ASSERT_NE(view.Latest(), nullptr);
  EXPECT_EQ(view.Latest()->manifest->id, Word(first, 2));

  rank0->Tell("save 30 30");
  rank1->Tell("save 30 31");
  const std::string third = rank0->Answer();
  EXPECT_EQ(Word(third, 0), "saved") << third;
  EXPECT_EQ(rank1->Answer(), third);
  ExpectWhole();
}

TEST_F(StoppedProcessTest, ASecondCoordinatorIsTurnedAwayWithTheNameOfTheFirst) {
  auto first = Start();
  ASSERT_EQ(Word(first->Answer(), 0), "opened");
  ASSERT_EQ(Word(first->Ask("save 10 10"), 0), "saved");
  auto second = Start();
  const std::string refused = second->Answer();
  EXPECT_EQ(Word(refused, 0) + " " + Word(refused, 1), "error Unavailable") << refused;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  EXPECT_NE(refused.find(host), std::string::npos) << refused;
  EXPECT_NE(refused.find("pid " + std::to_string(first->pid())), std::string::npos) << refused;
  EXPECT_EQ(second->WaitEnd(), 1);
  EXPECT_EQ(Word(first->Ask("save 20 20"), 0), "saved");
}

TEST_F(StoppedProcessTest, OfTwoCoordinatorsWithTakeoverExactlyOneSurvives) {
  RunToEnd({"save 10 10"});
  std::unique_ptr<Process> coordinators[] = {Start({"--takeover"}), Start({"--takeover"})};
  // Both open at once; one may already be refused there.
  std::vector<Process*> open;
  for (auto& coordinator : coordinators) {
    const std::string opened = coordinator->Answer();
    if (Word(opened, 0) == "opened")
      open.push_back(coordinator.get());
    else
      EXPECT_EQ(Word(opened, 1), "Aborted") << opened;
  }
  for (Process* coordinator : open) coordinator->Tell("save 20 20");
  int survivors = 0;
  std::string id;
  for (Process* coordinator : open) {
    const std::string saved = coordinator->Answer();
    if (Word(saved, 0) == "saved") {
      ++survivors;
      id = Word(saved, 2);
    } else {
      EXPECT_EQ(Word(saved, 1), "Aborted") << saved;
    }
  }
  EXPECT_EQ(survivors, 1);
  const RepositoryView view = Read();
  EXPECT_EQ(view.Latest()->manifest->id, id);
}

TEST_F(StoppedProcessTest, ARankMayStartBeforeRankZero) {
  auto rank1 = Start({"--world-size", "2", "--rank", "1"});
  ASSERT_FALSE(fs::exists(dir_.repository() + "/cairn.json"));
  auto rank0 = Start({"--world-size", "2", "--rank", "0"});
  ASSERT_EQ(Word(rank0->Answer(), 0), "opened");
  ASSERT_EQ(Word(rank1->Answer(), 0), "opened");
  rank0->Tell("save 10 10");
  rank1->Tell("save 10 11");
  const std::string saved = rank0->Answer();
  EXPECT_EQ(Word(saved, 0), "saved") << saved;
  EXPECT_EQ(rank1->Answer(), saved);
}

TEST_F(StoppedProcessTest, GoingBackInOneProcessMakesTheNewBranchWin) {
  RunToEnd({"save 10 10", "save 20 20", "save 30 30", "save 40 40", "restore 20", "save 30 31"});
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "31");
  // The old branch has the greater step, and stays behind the new one for ever.
  RunToEnd({"restore", "save 40 41"});
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "41");
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "41");
}

TEST_F(StoppedProcessTest, GoingBackOverRestartsMakesTheNewBranchWin) {
  RunToEnd({"save 10 10", "save 20 20", "save 30 30", "save 40 40"});
  RunToEnd({"restore 20", "save 30 31"});
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "31");
  RunToEnd({"restore", "save 40 41"});
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "41");
  RunToEnd({"restore 20", "save 21 22"});
  EXPECT_EQ(Word(RunToEnd({"restore"}), 2), "22");
}

class PinAgainstRemoval : public StoppedProcessTest {
 protected:
  /// A writer stands at `step` of the removal of the first checkpoint while a tool pins it.
  void PinAt(const std::string& step) {
    writer_ = Start({"--keep-last", "1"});
    ASSERT_EQ(Word(writer_->Answer(), 0), "opened");
    id_ = Word(writer_->Ask("save 10 10"), 2);
    ASSERT_EQ(writer_->Ask("stop " + step), "ok");
    writer_->Tell("save 20 20");
    ASSERT_TRUE(writer_->WaitStopped());
    auto tool = Start({"--read-only"});
    ASSERT_EQ(Word(tool->Answer(), 0), "opened");
    pinned_ = tool->Ask("pin " + id_);
    writer_->Continue();
    EXPECT_EQ(Word(writer_->Answer(), 0), "saved");
  }
  std::unique_ptr<Process> writer_;
  std::string id_;
  std::string pinned_;
};

TEST_F(PinAgainstRemoval, APinBeforeTheNoteKeepsTheCheckpoint) {
  PinAt("remove: note");
  EXPECT_EQ(pinned_, "ok");
  EXPECT_TRUE(Counts(Read(), id_));
  EXPECT_EQ(Word(writer_->Ask("save 30 30"), 0), "saved");
  EXPECT_TRUE(Counts(Read(), id_));
  ExpectWhole();
}

TEST_F(PinAgainstRemoval, APinAfterTheNoteIsRefused) {
  PinAt("remove: fence");
  EXPECT_EQ(Word(pinned_, 1), "Aborted") << pinned_;
  EXPECT_EQ(Read().Find(id_), nullptr);
}

TEST_F(PinAgainstRemoval, APinAfterTheManifestIsGoneIsRefused) {
  PinAt("remove: files");
  EXPECT_EQ(Word(pinned_, 1), "NotFound") << pinned_;
  EXPECT_EQ(Read().Find(id_), nullptr);
}

}  // namespace
}  // namespace cairn::interleaving
