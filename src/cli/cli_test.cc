#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/test_table.h"
#include "cli/test_program.h"
#include "format/json.h"
#include "storage/local/temp_directory.h"

// Runs the real program as a process, as a user does.

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CliTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_ / name; }

  /// Saves the steps; the metrics of the last are not numbers.
  std::string Repository(const std::string& name, const std::vector<std::int64_t>& steps,
                         ManagerOptions options = {}) {
    const std::string path = Path(name);
    options.directory = path;
    options.retention.keep_last.reset();
    options.pool_bytes = 0;
    auto manager = CheckpointManager::Open(std::move(options));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    for (const std::int64_t step : steps) {
      std::vector<float> weights(2000, static_cast<float>(step));
      const double loss = step == steps.back() ? std::nan("") : 0.25;
      auto saved = (*manager)->Save(
          {.step = step,
           .tensors = {{.name = "w\033[31m", .shape = {2000}, .data = weights.data()}},
           .metrics = Value::Object{{"loss", loss}},
           .files = {{.name = "config.json", .bytes = "{}"}},
           .blocking = true});
      EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    }
    EXPECT_TRUE((*manager)->Close().ok());
    return path;
  }
  /// A full checkpoint of step 10 and consecutive increments of steps 20, 30 and 40.
  std::string RepositoryOfIncrements(const std::string& name) {
    const std::string path = Path(name);
    ManagerOptions options;
    options.directory = path;
    options.retention.keep_last.reset();
    auto manager = CheckpointManager::Open(std::move(options)).value();
    TestTable before;
    for (const std::int64_t step : {10, 20, 30, 40}) {
      TestTable table = before;
      table.rows.erase(step - 9);
      for (std::int64_t key = 0; key < 5; ++key) table.rows[step + key] = 1;
      SaveRequest request{.step = step,
                          .kind = step == 10 ? SaveKind::kFull : SaveKind::kConsecutive,
                          .blocking = true};
      std::deque<std::string> memory;
      AddTestTable("users", table.Since(before), &request, &memory);
      EXPECT_TRUE(manager->Save(std::move(request)).ok());
      before = table;
    }
    EXPECT_TRUE(manager->Close().ok());
    return path;
  }
  std::vector<std::int64_t> Steps(const std::string& path) {
    std::vector<std::int64_t> steps;
    const Value json = Json(RunProgram({"checkpoint", "ls", path, "--json"}));
    const Value* list = json.Find("checkpoints");
    if (list == nullptr || list->if_list() == nullptr) return steps;
    for (const Value& row : *list->if_list()) steps.push_back(row.Find("step")->AsInt());
    return steps;
  }
  static void Flip(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }

  TempDirectory directory_;
};

TEST_F(CliTest, MessagesHoldNoPasswordsAndNoWallsOfDigits) {
  const Finished refused = RunProgram({"e", "ls", "--master", "http://ada:secret@127.0.0.1:1/"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("by its address alone, http://127.0.0.1:1;"));
  EXPECT_THAT(refused.err, Not(HasSubstr("secret")));
  const Finished late = RunProgram({"e", "wait", "7", "--timeout", "x"});
  EXPECT_EQ(late.code, 2);
  EXPECT_LT(late.err.size(), 200u) << late.err;
}

TEST_F(CliTest, HelpExistsOnEveryLevelAndGoesToStandardOutput) {
  std::vector<std::vector<std::string>> levels = {{}, {"checkpoint"}, {"doctor"}, {"bench"}};
  for (const char* command : {"ls", "show", "verify", "diff", "export", "import", "copy", "merge",
                              "rm", "pin", "unpin", "gc"}) {
    levels.push_back({"checkpoint", command});
  }
  for (std::vector<std::string> words : levels) {
    words.push_back("--help");
    const Finished finished = RunProgram(words);
    EXPECT_EQ(finished.code, 0);
    EXPECT_THAT(finished.out, AllOf(HasSubstr("Usage: cairn"), HasSubstr("Examples:")));
    EXPECT_EQ(finished.err, "");
  }
  EXPECT_THAT(RunProgram({"--version"}).out, StartsWith("cairn "));
}

TEST_F(CliTest, AWrongCommandLineIsUsage) {
  EXPECT_EQ(RunProgram({}).code, 2);
  EXPECT_EQ(RunProgram({"checkpoint"}).code, 2);
  const Finished typo = RunProgram({"checkpoint", "lst", "x"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(
      typo.err,
      HasSubstr("there is no command \"lst\" (did you mean \"ls\"?): see `cairn checkpoint"));
  EXPECT_THAT(RunProgram({"frobnicate"}).err, HasSubstr("no command \"frobnicate\": see"));
  EXPECT_EQ(RunProgram({"chekpoint", "--help"}).code, 2);
  EXPECT_EQ(RunProgram({"checkpoint", "ls"}).code, 2);
  const Finished extra = RunProgram({"checkpoint", "ls", "a", "b"});
  EXPECT_EQ(extra.code, 2);
  EXPECT_THAT(extra.err, HasSubstr("\"b\" is one word too many: see `cairn checkpoint ls --help`"));
  const Finished option = RunProgram({"experiment", "set-policy", "7", "--keep-lst", "3"});
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err,
              HasSubstr("there is no option \"--keep-lst\" (did you mean \"--keep-last\"?): see "
                        "`cairn experiment set-policy --help`"));
  EXPECT_THAT(RunProgram({"e", "edit", "7", "--label=a"}).err,
              HasSubstr("there is no option \"--label\": see"));
  EXPECT_THAT(RunProgram({"experiment", "ls", "-q"}).err, HasSubstr("no option \"-q\": see"));
  EXPECT_EQ(RunProgram({"checkpoint", "import", "a", "b"}).code, 2);
  EXPECT_EQ(RunProgram({"checkpoint", "import", "a", "b", "--step", "x"}).code, 2);
  EXPECT_EQ(RunProgram({"checkpoint", "import", "a", "b", "--step", "9223372036854775808"}).code,
            2);
  EXPECT_EQ(RunProgram({"checkpoint", "merge", "a", "b", "--step", "99999999999999999999"}).code,
            2);
  EXPECT_EQ(RunProgram({"checkpoint", "diff", "a"}).code, 2);
  const Finished json = RunProgram({"checkpoint", "ls", "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(*Json(json).Find("error/code"), Value("InvalidArgument"));
}

TEST_F(CliTest, AnEmptyWordIsNotTheLatest) {
  const std::string path = Repository("runs", {10, 20, 30});
  const std::vector<std::vector<std::string>> commands = {{"rm", path, "", "--yes"},
                                                          {"rm", path, "10", "", "--yes"},
                                                          {"pin", path, ""},
                                                          {"unpin", path, ""},
                                                          {"show", path, ""},
                                                          {"compact", path, ""},
                                                          {"diff", path, "10", ""},
                                                          {"copy", path, Path("b"), "--step", ""},
                                                          {"export", path, "", Path("c")}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.begin(), "checkpoint");
    const Finished refused = RunProgram(command);
    EXPECT_NE(refused.code, 0) << command[1] << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("empty")) << command[1];
  }
  const Finished listed = RunProgram({"checkpoint", "ls", path, "--json"});
  EXPECT_EQ(Json(listed).Find("checkpoints")->if_list()->size(), 3U);
}

TEST_F(CliTest, BadDirectoriesGiveAClearErrorAndNothingIsMade) {
  std::ofstream(Path("file")) << "x";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Path("missing"), "there is no directory"},
      {Path("file"), "is a file"},
      {directory_.path(), "is not a checkpoint repository"},
      {Path(std::string(10000, 'n')), "is too long"},
      {Path("../nowhere/.."), "there is no directory"},
      {Path("ünïcode/…"), "there is no directory"},
      {"", "empty"}};
  for (const auto& [path, message] : cases) {
    for (const char* command : {"ls", "show", "verify", "gc"}) {
      const Finished finished = RunProgram({"checkpoint", command, path});
      EXPECT_EQ(finished.code, 1) << command << " " << path.substr(0, 80);
      EXPECT_THAT(finished.err, AllOf(StartsWith("cairn: "), HasSubstr(message)));
      EXPECT_LT(finished.err.size(), 500u);
    }
    EXPECT_EQ(RunProgram({"checkpoint", "pin", path, "1"}).code, 1);
    EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "1", "--yes"}).code, 1);
    EXPECT_EQ(RunProgram({"checkpoint", "copy", path, Path("new")}).code, 1);
    EXPECT_EQ(RunProgram({"checkpoint", "export", path, Path("new")}).code, 1);
    EXPECT_EQ(RunProgram({"checkpoint", "merge", Path("new"), path}).code, 1);
  }
  EXPECT_FALSE(fs::exists(Path("missing")));
  EXPECT_FALSE(fs::exists(Path("new")));
  EXPECT_FALSE(fs::exists(Path("cairn.json")));
  EXPECT_EQ(*Json(RunProgram({"checkpoint", "ls", Path("missing"), "--json"})).Find("error/code"),
            Value("NotFound"));
}

TEST_F(CliTest, ADirectoryWithoutPermissionIsSaid) {
  const std::string path = Repository("a", {10});
  fs::permissions(path, fs::perms::none);
  // Root may read everything: become nobody.
  const Finished finished = RunProgram({"checkpoint", "ls", path}, [] {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(99);
  });
  fs::permissions(path, fs::perms::owner_all);
  if (finished.code == 99 || finished.code == 127) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("ermission denied"));
}

TEST_F(CliTest, LsListsForPeopleAndForPrograms) {
  const std::string path = Repository("a", {10, 20});
  const Finished text = RunProgram({"checkpoint", "ls", path});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("STEP"), HasSubstr("loss=0.25"), HasSubstr("latest"),
                              HasSubstr("2 checkpoints")));
  const Value json = Json(RunProgram({"checkpoint", "ls", path, "--json"}));
  const Value::List& rows = *json.Find("checkpoints")->if_list();
  ASSERT_EQ(rows.size(), 2u);
  for (const char* key : {"id", "step", "kind", "path", "bytes", "metrics", "metadata", "counters",
                          "time", "parent", "base", "generation", "sequence", "pinned", "foreign",
                          "latest", "counts", "bytes_shared"}) {
    EXPECT_TRUE(rows[0].if_object()->contains(key)) << key;
  }
  EXPECT_EQ(*rows[1].Find("metrics/loss"), Value("NaN"));
  EXPECT_EQ(*rows[1].Find("latest"), Value(true));
}

TEST_F(CliTest, ForeignAndUnfinishedOnesAreMarked) {
  const std::string path = Repository("a", {10});
  const std::string other = Repository("b", {30});
  fs::copy(other + "/checkpoint_000030", path + "/checkpoint_000030", fs::copy_options::recursive);
  fs::create_directories(path + "/checkpoint_000040/__model__");
  const Finished text = RunProgram({"checkpoint", "ls", path});
  EXPECT_THAT(text.out, AllOf(HasSubstr("foreign"), HasSubstr("Unfinished: checkpoint_000040"),
                              HasSubstr("1 checkpoint,")));
  const Finished removed = RunProgram({"checkpoint", "rm", path, "checkpoint_000030", "--yes"});
  EXPECT_EQ(removed.code, 1);
  EXPECT_THAT(removed.err, HasSubstr("by hand"));
}

TEST_F(CliTest, ShowTakesStepsIdsAndDirectories) {
  const std::string path = Repository("a", {10, 20});
  const Value json = Json(RunProgram({"checkpoint", "show", path, "--json"}));
  EXPECT_EQ(*json.Find("step"), Value(20));
  EXPECT_EQ(json.Find("tensors")->if_list()->size(), 1u);
  const std::string id = *json.Find("id")->if_string();
  for (const std::string& word : {std::string("20"), id, id.substr(0, 8),
                                  std::string("checkpoint_000020"), std::string("latest")}) {
    EXPECT_EQ(*Json(RunProgram({"checkpoint", "show", path, word, "--json"})).Find("id"), Value(id))
        << word;
  }
  EXPECT_EQ(
      *Json(RunProgram({"checkpoint", "show", path + "/checkpoint_000010", "--json"})).Find("step"),
      Value(10));
  const Finished text = RunProgram({"checkpoint", "show", path});
  // A name with an escape sequence must not reach the terminal.
  EXPECT_THAT(text.out, AllOf(HasSubstr("\\x1b[31m"), Not(HasSubstr("\033"))));
  for (const std::string& word : {std::string("zzz"), std::string("../x"), std::string("30"),
                                  std::string("ffffffff"), std::string(10000, 'a')}) {
    const Finished bad = RunProgram({"checkpoint", "show", path, word});
    EXPECT_EQ(bad.code, 1) << word.substr(0, 20);
    EXPECT_LT(bad.err.size(), 500u);
  }
}

TEST_F(CliTest, AStepThatWasSavedTwiceMeansTheNewestAndSaysSo) {
  const std::string path = Repository("a", {10, 20});
  Repository("a", {10});
  const Finished text = RunProgram({"checkpoint", "show", path, "10"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.err, HasSubstr("saved 2 times"));
  EXPECT_EQ(*Json(RunProgram({"checkpoint", "show", path, "10", "--json"})).Find("generation"),
            Value(2));
}

TEST_F(CliTest, VerifyFindsDamageAndExitsWithOne) {
  const std::string path = Repository("a", {10, 20});
  EXPECT_EQ(RunProgram({"checkpoint", "verify", path}).code, 0);
  Flip(path + "/checkpoint_000020/__model__/rank_0-00001.safetensors", 5000);
  EXPECT_EQ(RunProgram({"checkpoint", "verify", path, "--fast"}).code, 0);
  const Finished deep = RunProgram({"checkpoint", "verify", path});
  EXPECT_EQ(deep.code, 1);
  EXPECT_THAT(deep.out, AllOf(HasSubstr("DAMAGED"), HasSubstr("rank_0-00001.safetensors")));
  const Finished json = RunProgram({"checkpoint", "verify", path, "--json"});
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(*Json(json).Find("ok"), Value(false));
  EXPECT_EQ(Json(json).Find("problems")->if_list()->size(), 1u);
}

TEST_F(CliTest, DiffTellsWhatChanged) {
  const std::string path = Repository("a", {10, 20});
  const Finished steps = RunProgram({"checkpoint", "diff", path, "10", "20"});
  EXPECT_EQ(steps.code, 0);
  EXPECT_THAT(steps.out, AllOf(HasSubstr("changed"), HasSubstr("2000"), HasSubstr("10")));
  EXPECT_EQ(RunProgram({"checkpoint", "diff", path, "10", "20", "--exit-code"}).code, 1);
  const Finished same = RunProgram({"checkpoint", "diff", path + "/checkpoint_000010",
                                    path + "/checkpoint_000010", "--exit-code", "--json"});
  EXPECT_EQ(same.code, 0);
  EXPECT_TRUE(Json(same).Find("differences")->if_list()->empty());
}

TEST_F(CliTest, ExportWithoutATargetIsNotAnExportOfTheLatestIntoADirectoryOfThatName) {
  const std::string path = Repository("a", {10, 20});
  for (const char* word : {"10", "checkpoint_000010"}) {
    const Finished refused = RunProgram({"checkpoint", "export", path, word});
    EXPECT_NE(refused.code, 0) << word;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("OUT is missing"), HasSubstr(word)));
    EXPECT_FALSE(fs::exists(word));
  }
  EXPECT_EQ(RunProgram({"checkpoint", "export", path, Path("10")}).code, 0);
}

TEST_F(CliTest, ExportAndImportGoRound) {
  const std::string path = Repository("a", {10, 20});
  EXPECT_EQ(RunProgram({"checkpoint", "export", path, "10", Path("out")}).code, 0);
  EXPECT_TRUE(fs::exists(Path("out/model.safetensors")));
  EXPECT_TRUE(fs::exists(Path("out/config.json")));
  EXPECT_EQ(RunProgram({"checkpoint", "export", path, Path("out")}).code, 1);
  EXPECT_EQ(RunProgram({"checkpoint", "import", Path("out"), Path("b"), "--step", "3"}).code, 0);
  EXPECT_EQ(Steps(Path("b")), std::vector<std::int64_t>{3});
  const Finished same = RunProgram({"checkpoint", "diff", path + "/checkpoint_000010",
                                    Path("b") + "/checkpoint_000003", "--exit-code"});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
}

TEST_F(CliTest, AnImportSaysThatTablesDoNotComeBackAsTables) {
  const std::string path = RepositoryOfIncrements("run");
  ASSERT_EQ(RunProgram({"checkpoint", "export", path, Path("out")}).code, 0);
  const Finished rows_alone =
      RunProgram({"checkpoint", "import", Path("out"), Path("b"), "--step", "3"});
  EXPECT_EQ(rows_alone.code, 1);
  EXPECT_THAT(rows_alone.err, AllOf(HasSubstr("tables"), HasSubstr("cairn checkpoint copy")));
  // With dense variables beside them they are kept, and it is told as what.
  ASSERT_EQ(RunProgram({"checkpoint", "export", Repository("a", {10}), Path("dense")}).code, 0);
  fs::copy(Path("out/__lookup_table__"), Path("dense/__lookup_table__"));
  const Finished imported =
      RunProgram({"checkpoint", "import", Path("dense"), Path("c"), "--step", "3"});
  EXPECT_EQ(imported.code, 0);
  EXPECT_THAT(imported.out, AllOf(HasSubstr("kept as files"), HasSubstr("cairn checkpoint copy")));
}

TEST_F(CliTest, CopyIsANoOpTheSecondTime) {
  const std::string path = Repository("a", {10, 20});
  EXPECT_EQ(RunProgram({"checkpoint", "copy", path, Path("b"), "--step", "10"}).code, 0);
  const Finished all = RunProgram({"checkpoint", "copy", path, Path("b"), "--all"});
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr("Already there: step 10"), HasSubstr("Copied step 20")));
  const Finished again = RunProgram({"checkpoint", "copy", path, Path("b"), "--all"});
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.out, HasSubstr("Nothing to do"));
  EXPECT_EQ(Steps(Path("b")), (std::vector<std::int64_t>{10, 20}));
}

TEST_F(CliTest, MergeNamesTheMissingRank) {
  for (const int rank : {0, 2}) {
    Repository("r" + std::to_string(rank), {10},
               {.rank = rank, .world_size = 3, .private_parts = true});
  }
  const Finished missing = RunProgram({"checkpoint", "merge", Path("all"), Path("r0"), Path("r2")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("rank 1"));
  EXPECT_FALSE(fs::exists(Path("all")));
}

TEST_F(CliTest, RmAsksOnATerminalAndRefusesWithoutOne) {
  const std::string path = Repository("a", {10, 20, 30});
  const Finished refused = RunProgram({"checkpoint", "rm", path, "10"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--yes"));
  const Finished no = RunOnTerminal({"checkpoint", "rm", path, "10"}, "n\n");
  EXPECT_EQ(no.code, 1);
  EXPECT_THAT(no.out, HasSubstr("Remove 1 checkpoint"));
  EXPECT_EQ(Steps(path), (std::vector<std::int64_t>{10, 20, 30}));
  const Finished yes = RunOnTerminal({"checkpoint", "rm", path, "10"}, "y\n");
  EXPECT_EQ(yes.code, 0) << yes.out;
  EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "20", "--yes"}).code, 0);
  EXPECT_EQ(Steps(path), std::vector<std::int64_t>{30});
}

TEST_F(CliTest, RmThatWasInterruptedGoesOnWithTheRest) {
  const std::string path = Repository("a", {10, 20, 30, 40});
  ASSERT_EQ(RunProgram({"checkpoint", "rm", path, "30", "--yes"}).code, 0);
  // Killed after its first removal, and started again.
  const Finished again = RunProgram({"checkpoint", "rm", path, "10", "20", "30", "--yes"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.out, HasSubstr("Removed step 10"));
  EXPECT_THAT(again.out, HasSubstr("Not there (any more): 30"));
  EXPECT_EQ(Steps(path), std::vector<std::int64_t>{40});
  // A word that cannot be any is a slip of the pen: nothing is removed.
  EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "40", "4O", "--yes"}).code, 1);
  const Finished none = RunProgram({"checkpoint", "rm", path, "10", "20", "--yes"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no checkpoint of step"));
  EXPECT_EQ(Steps(path), std::vector<std::int64_t>{40});
}

TEST_F(CliTest, IncrementsAreListedWithBaseParentRowsAndDeleted) {
  const std::string path = RepositoryOfIncrements("run");
  const Value json = Json(RunProgram({"checkpoint", "ls", path, "--json"}));
  const Value::List& rows = *json.Find("checkpoints")->if_list();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(*rows[0].Find("kind")->if_string(), "full");
  EXPECT_EQ(*rows[2].Find("kind")->if_string(), "increment");
  EXPECT_EQ(*rows[2].Find("chain")->if_string(), "consecutive");
  EXPECT_EQ(*rows[2].Find("base")->if_string(), *rows[0].Find("id")->if_string());
  EXPECT_EQ(*rows[2].Find("parent")->if_string(), *rows[1].Find("id")->if_string());
  const Value& table = rows[2].Find("tables")->if_list()->front();
  EXPECT_EQ(table.Find("rows")->AsInt(), 5);
  EXPECT_EQ(table.Find("deleted")->AsInt(), 1);
  const Finished text = RunProgram({"checkpoint", "ls", path});
  EXPECT_THAT(text.out, AllOf(HasSubstr("PARENT"), HasSubstr("increment"), HasSubstr("ROWS")));
  EXPECT_THAT(RunProgram({"checkpoint", "show", path, "40"}).out,
              AllOf(HasSubstr("increment, consecutive"), HasSubstr("users")));
  fs::remove_all(path + "/increment_000020");
  EXPECT_THAT(RunProgram({"checkpoint", "ls", path}).out, HasSubstr("BROKEN"));
  const Finished verified = RunProgram({"checkpoint", "verify", path});
  EXPECT_EQ(verified.code, 1);
  EXPECT_THAT(verified.out, HasSubstr("increment_000030: builds on the checkpoint"));
}

TEST_F(CliTest, WhatIncrementsBuildOnIsRemovedOnlyWithThem) {
  const std::string path = RepositoryOfIncrements("run");
  const Finished refused = RunProgram({"checkpoint", "rm", path, "20", "--yes"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("increment_000030, increment_000040"), HasSubstr("--increments")));
  EXPECT_EQ(Steps(path), (std::vector<std::int64_t>{10, 20, 30, 40}));
  EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "30", "40", "--yes"}).code, 0);
  EXPECT_EQ(Steps(path), (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "10", "--increments", "--yes"}).code, 0);
  EXPECT_EQ(Steps(path), (std::vector<std::int64_t>{}));
}

TEST_F(CliTest, CompactMakesOneFullCheckpointOfTheChain) {
  const std::string path = RepositoryOfIncrements("run");
  const Finished compacted = RunProgram({"checkpoint", "compact", path});
  ASSERT_EQ(compacted.code, 0) << compacted.err;
  EXPECT_THAT(compacted.out, HasSubstr("Put 4 checkpoints together: step 40"));
  const Value json = Json(RunProgram({"checkpoint", "show", path, "--json"}));
  EXPECT_EQ(*json.Find("kind")->if_string(), "full");
  EXPECT_EQ(json.Find("step")->AsInt(), 40);
  EXPECT_EQ(json.Find("tables")->if_list()->front().Find("rows")->AsInt(), 17);
  EXPECT_THAT(RunProgram({"checkpoint", "compact", path}).out, HasSubstr("Nothing to do"));
  EXPECT_EQ(RunProgram({"checkpoint", "verify", path}).code, 0);
  const Finished difference = RunProgram({"checkpoint", "diff", path, "30", "40"});
  EXPECT_THAT(difference.out, HasSubstr("0 changed, 5 added, 1 removed"));
}

TEST_F(CliTest, APinnedCheckpointIsNotRemoved) {
  const std::string path = Repository("a", {10, 20});
  EXPECT_EQ(RunProgram({"checkpoint", "pin", path, "10"}).code, 0);
  EXPECT_THAT(RunProgram({"checkpoint", "pin", path, "10"}).out, HasSubstr("already pinned"));
  EXPECT_THAT(RunProgram({"checkpoint", "ls", path}).out, HasSubstr("pinned"));
  const Finished refused = RunProgram({"checkpoint", "rm", path, "10", "--yes"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("unpin"));
  EXPECT_EQ(RunProgram({"checkpoint", "unpin", path, "10"}).code, 0);
  EXPECT_EQ(RunProgram({"checkpoint", "rm", path, "10", "--yes"}).code, 0);
}

TEST_F(CliTest, WhatWritesRefusesWhileAWriterLivesAndReadingGoesOn) {
  const std::string path = Repository("a", {10});
  auto writer = CheckpointManager::Open({.directory = path});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  const std::string pid = std::to_string(getpid());
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"checkpoint", "rm", path, "10", "--yes"}, {"checkpoint", "gc", path}}) {
    const Finished finished = RunProgram(words);
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(finished.err, HasSubstr(pid));
  }
  EXPECT_EQ(*Json(RunProgram({"checkpoint", "gc", path, "--json"})).Find("error/code"),
            Value("Unavailable"));
  EXPECT_EQ(RunProgram({"checkpoint", "verify", path}).code, 0);
  EXPECT_EQ(RunProgram({"checkpoint", "pin", path, "10"}).code, 0);
  EXPECT_EQ(RunProgram({"checkpoint", "export", path, Path("out")}).code, 0);
  EXPECT_EQ(RunProgram({"checkpoint", "copy", path, Path("b")}).code, 0);
  EXPECT_TRUE((*writer)->Save({.step = 11, .blocking = true}).ok());
}

TEST_F(CliTest, WhatWritesFencesALivingWriterOutWhenItIsToldTo) {
  const std::string other = Repository("other", {30});
  ASSERT_EQ(RunProgram({"checkpoint", "export", other, Path("plain")}).code, 0);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"rm", "DIR", "10", "--yes"},
                                             {"gc", "DIR"},
                                             {"import", Path("plain"), "DIR", "--step", "50"},
                                             {"copy", other, "DIR", "--adopt"},
                                             {"compact", "DIR"}}) {
    const std::string path = Repository("run_" + words[0], {10, 20});
    auto writer = CheckpointManager::Open({.directory = path});
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    std::vector<std::string> command = {"checkpoint"};
    for (const std::string& word : words) command.push_back(word == "DIR" ? path : word);
    const bool has_to_open = words[0] != "compact";  // of a full one nothing is to be done
    EXPECT_EQ(RunProgram(command).code, has_to_open ? 1 : 0) << words[0];
    command.emplace_back("--takeover");
    const Finished taken = RunProgram(command);
    EXPECT_EQ(taken.code, 0) << words[0] << ": " << taken.err;
    EXPECT_EQ((*writer)->Save({.step = 60, .blocking = true}).status().code(),
              has_to_open ? Code::kAborted : Code::kOk)
        << words[0];
  }
  EXPECT_THAT(RunProgram({"checkpoint", "merge", "--help"}).out, HasSubstr("--takeover"));
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsAFailureAndAClosedPipeIsNot) {
  const std::string path = Repository("a", {10});
  const auto onto = [](const char* device) {
    return [device] { dup2(open(device, O_WRONLY), STDOUT_FILENO); };
  };
  const Finished full = RunProgram({"checkpoint", "ls", path}, onto("/dev/full"));
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("cannot write the output"));
  const Finished closed = RunProgram({"checkpoint", "ls", path}, [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(99);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
  });
  EXPECT_EQ(closed.code, 0);
  EXPECT_EQ(closed.signal, 0);
}

TEST_F(CliTest, ALimitOnTheSizesOfFilesIsAnErrorThatSaysSo) {
  const std::string path = Repository("a", {10});
  const auto limit = [] {
    const rlimit small{.rlim_cur = 2048, .rlim_max = 2048};
    setrlimit(RLIMIT_FSIZE, &small);
  };
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"copy", path, Path("b")}, {"export", path, Path("out")}}) {
    std::vector<std::string> all = {"checkpoint"};
    all.insert(all.end(), words.begin(), words.end());
    const Finished stopped = RunProgram(all, limit);
    EXPECT_EQ(stopped.signal, 0) << words[0];
    EXPECT_EQ(stopped.code, 1) << words[0];
    EXPECT_THAT(stopped.err, HasSubstr("ulimit -f")) << words[0];
    EXPECT_EQ(RunProgram(all).code, 0) << words[0];
  }
}

TEST_F(CliTest, DoctorTriesAndMeasuresADirectoryAndLeavesNothing) {
  const Finished machine = RunProgram({"doctor"});
  EXPECT_EQ(machine.code, 0);
  EXPECT_THAT(machine.out, HasSubstr("io_uring"));
  fs::create_directory(Path("d"));
  const Value json =
      Json(RunProgram({"doctor", Path("d"), "--size", "8MiB", "--rounds", "1", "--json"}));
  for (const char* key : {"o_direct", "hard_links", "locks", "leases", "file_system", "network"}) {
    EXPECT_NE(json.Find(std::string("directory/") + key), nullptr) << key;
  }
  const Value* rates = json.Find("directory/bytes_per_second");
  ASSERT_NE(rates, nullptr);
  EXPECT_GT(rates->Find("write_buffered/median")->AsDouble(), 0.0);
  EXPECT_GT(rates->Find("read_buffered/median")->AsDouble(), 0.0);
  EXPECT_TRUE(fs::is_empty(Path("d")));
  EXPECT_EQ(RunProgram({"doctor", Path("none")}).code, 1);
  EXPECT_FALSE(fs::exists(Path("none")));
}

TEST_F(CliTest, BenchMeasuresADirectoryAndLeavesNothing) {
  fs::create_directory(Path("d"));
  const Value json = Json(RunProgram(
      {"bench", Path("d"), "--size", "8MiB", "--tensors", "3", "--rounds", "1", "--json"}));
  for (const char* what : {"save", "restore", "plain_write", "plain_read"}) {
    const Value* rate = json.Find(std::string("bytes_per_second/") + what + "/median");
    ASSERT_NE(rate, nullptr) << what;
    EXPECT_GT(rate->AsDouble(), 0.0) << what;
  }
  EXPECT_EQ(json.Find("bytes")->AsInt(), (8 << 20) / 12288 * 12288);
  EXPECT_TRUE(fs::is_empty(Path("d")));
  EXPECT_EQ(RunProgram({"bench", Path("none")}).code, 1);
  EXPECT_FALSE(fs::exists(Path("none")));
  const Finished tiny = RunProgram({"bench", Path("d"), "--size", "1MiB", "--tensors", "9999"});
  EXPECT_EQ(tiny.code, 1);
  EXPECT_THAT(tiny.err, HasSubstr("do not make 9999 tensors"));
  EXPECT_EQ(RunProgram({"bench", "s3://bucket/x"}).code, 1);
}

}  // namespace
}  // namespace cairn
