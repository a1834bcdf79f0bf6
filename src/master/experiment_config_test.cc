#include "master/experiment_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "format/json.h"

namespace cairn::master {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Complaint(std::string_view yaml) {
  return std::string(ParseExperiment(yaml).status().message());
}

TEST(ExperimentConfigTest, ReadsWhatUsersWrite) {
  const auto config = ParseExperiment(R"(
name: mnist
description: "a: b"
labels: [a, b]
entrypoint: python3 train.py --lr=0.1
hyperparameters:
  lr: 0.5
  layers:
    width: 64
    kind: "64"
  flags: [1, two]
searcher: {name: single, metric: loss, smaller_is_better: false}
max_restarts: 2
checkpoint_storage: s3://bucket/prefix
checkpoint_policy: {keep_last: 2, keep_best: 3, max_age: 7d, max_bytes: 20GiB, experiment_bytes: 1.5kB}
resources:
  slots_per_trial: 2
  priority: 5
  limits: {memory: 8GiB, open_files: 4096, nice: 10, wall_time: 2h}
environment:
  variables: {OMP_NUM_THREADS: 1, NAME: x}
preemption_timeout: 10m
)");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->name, "mnist");
  EXPECT_THAT(config->labels, ElementsAre("a", "b"));
  EXPECT_THAT(config->entrypoint, ElementsAre("python3", "train.py", "--lr=0.1"));
  EXPECT_EQ(EncodeJson(config->HparamsOf(0)),
            R"({"flags":[1,"two"],"layers":{"kind":"64","width":64},"lr":0.5})");
  EXPECT_EQ(config->searcher.metric, "loss");
  EXPECT_EQ(config->retention.keep_best, 3u);
  EXPECT_EQ(config->retention.score, "loss");
  EXPECT_TRUE(config->retention.maximize);
  EXPECT_EQ(config->retention.max_age, std::chrono::hours(7 * 24));
  EXPECT_EQ(config->retention.max_bytes, std::uint64_t{20} << 30);
  EXPECT_EQ(config->retention.experiment_bytes, 1500u);
  EXPECT_EQ(config->environment.at("OMP_NUM_THREADS"), "1");
  const TrialConfig trial = config->TrialOf("7", 0, "/default");
  EXPECT_EQ(trial.storage, "s3://bucket/prefix");
  EXPECT_EQ(trial.env.at("PYTHONUNBUFFERED"), "1");
  const std::string seed = trial.env.at("CAIRN_TRIAL_SEED");
  EXPECT_LT(std::stoull(seed), 1ull << 31);
  EXPECT_EQ(config->TrialOf("8", 0, "/default").env.at("CAIRN_TRIAL_SEED"), seed);
  EXPECT_NE(config->TrialOf("7", 1, "/default").env.at("CAIRN_TRIAL_SEED"), seed);
  EXPECT_EQ(trial.world_size, 2);
  EXPECT_EQ(trial.limits.address_space_bytes, std::uint64_t{8} << 30);
  EXPECT_EQ(trial.limits.open_files, 4096u);
  EXPECT_EQ(trial.limits.nice, 10);
  EXPECT_EQ(trial.limits.wall_time, std::chrono::hours(2));
  EXPECT_EQ(trial.preemption_timeout, std::chrono::minutes(10));
  EXPECT_TRUE(trial.Validate().ok());
  // The source is enough to get the same again.
  const auto again = ExperimentFromValue(config->source);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(ToValue(again->TrialOf("7", 0, "/default")), ToValue(trial));
}

TEST(ExperimentConfigTest, JsonIsTakenWithItsEscapes) {
  const auto config = ParseExperiment(
      R"({"name": "\ud83d\ude00 \u00e9", "entrypoint": "x", "hyperparameters": {"a": 1e3}})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->name, "\U0001F600 \u00e9");
  EXPECT_THAT(Complaint(R"({"name": "\ud83d", "entrypoint": "x"})"), HasSubstr("line 1"));
  EXPECT_THAT(Complaint(R"({"nmae": "\ud83d\ude00", "entrypoint": "x"})"), HasSubstr("name"));
}

TEST(ExperimentConfigTest, WhatIsLeftOutIsFilledIn) {
  const auto filled = [](const std::string& yaml) {
    const auto config = ParseExperiment(yaml);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    const Value whole = WithDefaults(*config);
    // Nothing else than the file means: it is read as the same config.
    const auto again = ExperimentFromValue(whole);
    EXPECT_TRUE(again.ok()) << again.status().ToString();
    if (again.ok()) {
      EXPECT_EQ(ToValue(again->TrialOf("7", 0, "/d")), ToValue(config->TrialOf("7", 0, "/d")));
    }
    return EncodeJson(whole);
  };
  EXPECT_EQ(
      filled("entrypoint: python3 t.py\n"),
      R"({"description":"","entrypoint":"python3 t.py","hyperparameters":{},"kill_grace":30.0,)"
      R"("labels":[],"max_restarts":5,"preemption_timeout":600.0,)"
      R"("resources":{"priority":0,"slots_per_trial":1},)"
      R"("searcher":{"metric":"","name":"single","seed":0,"smaller_is_better":true}})");
  // What the file says stays as it says it.
  EXPECT_EQ(filled("entrypoint: [a, b]\nmax_restarts: 0\nresources: {slots: 2}\n"
                   "hyperparameters: {a.b: 1}\npreemption_timeout: 10m\nlabels: [x]\n"
                   "searcher: {name: grid, metric: loss, smaller_is_better: false}\n"),
            R"({"description":"","entrypoint":["a","b"],"hyperparameters":{"a.b":1},)"
            R"("kill_grace":30.0,"labels":["x"],"max_restarts":0,"preemption_timeout":"10m",)"
            R"("resources":{"priority":0,"slots":2},"searcher":{"max_concurrent_trials":16,)"
            R"("metric":"loss","name":"grid","seed":0,"smaller_is_better":false}})");
  EXPECT_THAT(filled("entrypoint: a\nsearcher: {name: adaptive_asha, metric: x, max_trials: 4, "
                     "max_length: 8}\n"),
              HasSubstr(R"("max_rungs":5,"max_trials":4,"metric":"x","mode":"standard")"));
}

TEST(ExperimentConfigTest, FilesOfDeterminedsTutorialAreTaken) {
  // 0_start.yaml, as it is there; and with what others have.
  const std::string start =
      "name: core-api-stage-0\nentrypoint: python3 0_start.py\n\n# Use the single-searcher to run "
      "just one instance of the training script\nsearcher:\n   name: single\n   # metric is "
      "required "
      "but it shouldn't hurt to ignore it at this point.\n   metric: x\n   # max_length is ignored "
      "if the training script ignores it.\n   max_length: 1\n\nmax_restarts: 0\n";
  const auto config = ParseExperiment(start);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->searcher.metric, "x");
  EXPECT_EQ(config->max_restarts, 0u);
  for (const char* length : {"{batches: 9}", "{epochs: 9}", "{records: 9}"}) {
    const auto other = ParseExperiment(
        fmt::format("entrypoint: a\nsearcher: {{name: single, metric: x, max_length: {}}}\n"
                    "reproducibility: {{experiment_seed: 777}}\n",
                    length));
    ASSERT_TRUE(other.ok()) << other.status().ToString();
    EXPECT_EQ(other->searcher.seed, 777u);
  }
  EXPECT_THAT(Complaint("entrypoint: a\nsearcher: {name: single, max_length: {meters: 9}}"),
              HasSubstr("meters"));
}

TEST(ExperimentConfigTest, APolicyThatComesLaterKnowsWhatTheBestIs) {
  const auto config = ParseExperiment(
      "entrypoint: python3 t.py\nsearcher: {name: single, metric: loss, smaller_is_better: "
      "true}\n");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_FALSE(config->retention.keep_best.has_value());
  EXPECT_EQ(config->retention.score, "loss");
  EXPECT_FALSE(config->retention.maximize);
}

TEST(ExperimentConfigTest, AShellIsUsedWhereOneIsNeeded) {
  const auto command = [](std::string_view text) {
    return ParseExperiment("entrypoint: '" + std::string(text) + "'")->entrypoint;
  };
  EXPECT_THAT(command(" a  b "), ElementsAre("a", "b"));
  EXPECT_THAT(command("a $HOME"), ElementsAre("/bin/sh", "-c", "exec a $HOME"));
  EXPECT_THAT(command("a && b"), ElementsAre("/bin/sh", "-c", "a && b"));
  EXPECT_THAT(command("exit 3"), ElementsAre("/bin/sh", "-c", "exit 3"));
  EXPECT_THAT(command("A=1 b"), ElementsAre("/bin/sh", "-c", "A=1 b"));
  EXPECT_THAT(ParseExperiment("entrypoint: [a, 'b c', 3]")->entrypoint,
              ElementsAre("a", "b c", "3"));
}

TEST(ExperimentConfigTest, TheTutorialsFilesAreUnderstood) {
  for (const char* name : {"0_start", "1_metrics", "2_checkpoints", "4_distributed"}) {
    std::ifstream in("examples/core_api/" + std::string(name) + ".yaml");
    std::stringstream text;
    text << in.rdbuf();
    const auto config = ParseExperiment(text.str());
    EXPECT_TRUE(config.ok()) << name << ": " << config.status().ToString();
  }
}

TEST(ExperimentConfigTest, MisspeltKeysAreRefusedWithLineAndSuggestion) {
  EXPECT_EQ(Complaint("name: a\nentrypoint: b\nmax_restart: 3\n"),
            "line 3: \"max_restart\" is not known; did you mean \"max_restarts\"?");
  EXPECT_EQ(Complaint("entrypoint: b\nsearcher:\n  name: single\n  metrik: x\n"),
            "line 4: \"metrik\" in searcher is not known; did you mean \"metric\"?");
  EXPECT_THAT(Complaint("entrypoint: b\nsearcher: {name: randm, max_trials: 2}"),
              HasSubstr("did you mean \"random\"?"));
  EXPECT_THAT(Complaint("entrypoint: b\nhyperparameters: {a: {type: duble, minval: 1, maxval: 2}}"),
              HasSubstr("did you mean \"double\"?"));
  EXPECT_THAT(Complaint("name: a\nentrypont: b"),
              AllOf(HasSubstr("line 2"), HasSubstr("did you mean \"entrypoint\"?")));
  EXPECT_THAT(Complaint("entrypoint: b\nxyzzy: 1"), HasSubstr("known here: checkpoint_policy"));
}

TEST(ExperimentConfigTest, AllMistakesAreToldAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(Complaint("nam: a\n"
                      "entrypont: b\n"
                      "max_restarts: many\n"
                      "searcher:\n"
                      "  name: randm\n"
                      "  metric: [loss]\n"
                      "  max_trails: 4\n"
                      "hyperparameters:\n"
                      "  lr: {type: duble, minval: 1, maxval: 2}\n"
                      "  n: {type: int, minval: 5, maxvl: 7}\n"
                      "checkpoint_policy: {keep_best: 2, keep_lst: 1}\n"),
            "line 1: \"nam\" is not known; did you mean \"name\"?\n"
            "line 2: \"entrypont\" is not known; did you mean \"entrypoint\"?\n"
            "line 3: max_restarts must be a whole number, not a text\n"
            "line 5: searcher.name \"randm\" is not known; did you mean \"random\"?\n"
            "line 6: searcher.metric must be a text, not a list\n"
            "line 7: \"max_trails\" in searcher is not known; did you mean \"max_trials\"?\n"
            "line 9: hyperparameters.lr: there is no type \"duble\"; did you mean \"double\"?\n"
            "line 10: \"maxvl\" in hyperparameters.n is not known; did you mean \"maxval\"?\n"
            "line 11: \"keep_lst\" in checkpoint_policy is not known; did you mean "
            "\"keep_last\"?");
  EXPECT_EQ(Complaint("searcher: {name: adaptive_asha}\nresources: {slots: -1}\n"),
            "line 1: searcher.max_length is missing: how many steps a trial trains at most\n"
            "line 1: searcher.metric is missing: what the trials are compared by\n"
            "line 1: searcher.max_trials is missing: how many trials to try\n"
            "line 2: resources.slots must be from 0 to 4096\n"
            "entrypoint is missing: the command that trains, for example \"python3 train.py\"");
  EXPECT_EQ(Complaint("entrypoint: b\nresources:\n  limits: {memry: 1GiB, nice: -5, wall_time: 0,\n"
                      "    open_files: many, memory: 1kB}"),
            "line 3: resources.limits.nice must be from 0 to 19\n"
            "line 3: resources.limits.wall_time must be above 0\n"
            "line 3: \"memry\" in resources.limits is not known; did you mean \"memory\"?\n"
            "line 4: resources.limits.memory must be at least 1MiB: less holds no program\n"
            "line 4: resources.limits.open_files must be a whole number, not a text");
}

TEST(ExperimentConfigTest, OneMistakeIsToldOnce) {
  // What nobody knows is not asked for its members, nor what was misspelt missed.
  EXPECT_EQ(Complaint("entrypoint: b\nsearcher: {name: xyzzy, max_trials: 3, budget: 4}"),
            "line 2: searcher.name \"xyzzy\" is not known; known: single, random, grid, "
            "adaptive_asha");
  EXPECT_EQ(Complaint("entrypoint: b\nresources: {launcher: k8s, partition: gpu}"),
            "line 2: resources.launcher \"k8s\" is not known: local, slurm or ray");
  EXPECT_THAT(Complaint("entrypoint: b\ncheckpoint_storage: {type: gcs, bucket: b}"),
              AllOf(HasSubstr("checkpoint_storage.type must be"), Not(HasSubstr("\n"))));
  EXPECT_EQ(Complaint("entrypoint: b\nsearcher: {name: random, max_trials: few}"),
            "line 2: searcher.max_trials must be a whole number, not a text");
  EXPECT_EQ(Complaint("entrypoint: ''"),
            "entrypoint is missing: the command that trains, for example \"python3 train.py\"");
  EXPECT_EQ(Complaint("entrypoint: b\ncheckpoint_storage: 7"),
            "line 2: checkpoint_storage must be a directory or URL");
  EXPECT_EQ(Complaint("entrypoint: b\nmax_restarts: 99999999999999999999"),
            "line 2: max_restarts must be from 0 to 1000000");
}

TEST(ExperimentConfigTest, MoreMistakesThanAnybodyReadsAreCounted) {
  std::string text = "entrypoint: b\n";
  for (int i = 0; i < 60; ++i) text += "xyzzy" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(Complaint(text), AllOf(HasSubstr("line 51:"), Not(HasSubstr("line 52:")),
                                     ::testing::EndsWith("\nand 10 more")));
}

TEST(ExperimentConfigTest, WrongTypesAreRefusedWithTheirPlace) {
  EXPECT_EQ(Complaint("entrypoint: b\nname: [a]"), "line 2: name must be a text, not a list");
  EXPECT_EQ(Complaint("entrypoint: b\nmax_restarts: many"),
            "line 2: max_restarts must be a whole number, not a text");
  EXPECT_EQ(Complaint("entrypoint: b\nmax_restarts: -1"),
            "line 2: max_restarts must be from 0 to 1000000");
  EXPECT_THAT(Complaint("name: a"), HasSubstr("entrypoint is missing"));
  EXPECT_THAT(Complaint("entrypoint: 3"), HasSubstr("entrypoint must be a command"));
  EXPECT_THAT(Complaint("entrypoint: b\nresources: 2"), HasSubstr("resources must be a map"));
  EXPECT_THAT(Complaint("entrypoint: b\ncheckpoint_storage: gopher://x"), HasSubstr("gopher"));
  EXPECT_THAT(Complaint("entrypoint: b\ncheckpoint_storage: here"), HasSubstr("absolute"));
  EXPECT_THAT(Complaint("entrypoint: b\nenvironment: {variables: {CAIRN_RANK: 1}}"),
              HasSubstr("the master's own"));
  EXPECT_THAT(Complaint("entrypoint: b\nenvironment: {variables: {'a b': 1}}"),
              HasSubstr("no name of a variable"));
  EXPECT_THAT(Complaint("entrypoint: b\npreemption_timeout: soon"), HasSubstr("a time"));
  for (const char* size : {"1.5", "0.5", "-1", "many"}) {
    EXPECT_THAT(Complaint(fmt::format("entrypoint: b\ncheckpoint_policy: {{max_bytes: {}}}", size)),
                HasSubstr("max_bytes must be a size"))
        << size;
  }
  EXPECT_EQ(
      Complaint("entrypoint: b\ncheckpoint_policy: {max_bytes: 1e6, experiment_bytes: 1.1GiB}"),
      "");
  EXPECT_THAT(Complaint("entrypoint: b\ncheckpoint_policy: {keep_best: 2}"),
              HasSubstr("name of a metric"));
  EXPECT_THAT(Complaint("entrypoint: b\nhyperparameters: {a: {type: int, minval: 1, maxval: 2}}"),
              HasSubstr("searcher: single"));
}

TEST(ExperimentConfigTest, BrokenAndHostileFilesAreRefused) {
  EXPECT_THAT(Complaint(""), HasSubstr("empty"));
  EXPECT_THAT(Complaint("- a\n- b\n"), HasSubstr("must be a map"));
  EXPECT_THAT(Complaint("name: [a"), HasSubstr("line"));
  EXPECT_THAT(Complaint("name: a\nresources:\n\tslots_per_trial: 1\n"),
              AllOf(HasSubstr("line 3: "), HasSubstr("begins with a tab")));
  EXPECT_THAT(Complaint("name: a\nname: b\n"), HasSubstr("line 2: \"name\" is there twice"));
  EXPECT_THAT(Complaint("name: a\n---\nname: b\n"), HasSubstr("more than one document"));
  EXPECT_THAT(Complaint("name: !!python/object a"), HasSubstr("tags"));
  EXPECT_THAT(Complaint(std::string("name: a\0b", 9)), HasSubstr("UTF-8"));
  EXPECT_THAT(Complaint(std::string(2u << 20, 'a')), HasSubstr("at most"));
  EXPECT_THAT(Complaint("a: " + std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested deeper"));
  // A thousand million laughs.
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += (j > 0 ? ",*a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(Complaint(bomb), HasSubstr("aliases counted"));
  EXPECT_FALSE(ParseExperiment("a: &a [*a]").ok());
}

TEST(ExperimentConfigTest, AliasesAreReplaced) {
  const auto config =
      ParseExperiment("entrypoint: &e run\nhyperparameters: {a: &l [1, 2], b: *l, c: *e}");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(EncodeJson(config->HparamsOf(0)), R"({"a":[1,2],"b":[1,2],"c":"run"})");
}

TEST(ExperimentConfigTest, MapsAreMergedIntoOthers) {
  const auto config = ParseExperiment(R"(
entrypoint: run
hyperparameters:
  base: &base {lr: 0.1, layers: 2}
  more: &more {lr: 0.2, width: 8}
  model: {lr: 0.5, <<: *base}
  both:
    <<: [*base, *more]
    drop: 0
  named: {"<<": 1}
  again: &again {<<: *base, depth: 1}
  deep: {<<: *again}
)");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const Value hparams = config->HparamsOf(0);
  EXPECT_EQ(EncodeJson(*hparams.Find("model")), R"({"layers":2,"lr":0.5})");
  EXPECT_EQ(EncodeJson(*hparams.Find("both")), R"({"drop":0,"layers":2,"lr":0.1,"width":8})");
  EXPECT_EQ(EncodeJson(*hparams.Find("named")), R"({"<<":1})");
  EXPECT_EQ(EncodeJson(*hparams.Find("deep")), R"({"depth":1,"layers":2,"lr":0.1})");
  EXPECT_THAT(Complaint("entrypoint: b\nhyperparameters:\n  <<: 3\n"),
              HasSubstr("line 3: \"<<\" takes in a map"));
  EXPECT_THAT(Complaint("entrypoint: b\nhyperparameters: {<<: {a: 1}, <<: {b: 1}}"),
              HasSubstr("twice"));
  EXPECT_THAT(Complaint("<<: {entrypiont: b}"), HasSubstr("entrypoint")) << "checked as ever";
}

constexpr char kSpace[] = R"(
entrypoint: b
hyperparameters:
  fixed: 3
  n: {type: int, minval: 2, maxval: 4, count: 3}
  opt: {type: categorical, vals: [sgd, adam]}
  nested:
    lr: {type: log, base: 10, minval: -3, maxval: -1, count: 3}
    drop: {type: double, minval: 0.0, maxval: 0.5, count: 2}
searcher: {name: random, metric: loss, max_trials: 500, seed: 7}
)";

TEST(ExperimentConfigTest, RandomTrialsDependOnSeedAndNumberAlone) {
  auto config = ParseExperiment(kSpace);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->searcher.max_trials, 500u);
  std::set<std::int64_t> ns;
  std::set<std::string> opts;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Value hparams = config->HparamsOf(i);
    EXPECT_EQ(hparams.Find("fixed")->AsInt(), 3);
    ns.insert(hparams.Find("n")->AsInt());
    opts.insert(*hparams.Find("opt")->if_string());
    const double lr = hparams.Find("nested/lr")->AsDouble();
    EXPECT_GE(lr, 1e-3);
    EXPECT_LE(lr, 1e-1);
    EXPECT_EQ(hparams, ParseExperiment(kSpace)->HparamsOf(i));
  }
  EXPECT_EQ(ns, (std::set<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(opts.size(), 2u);
  const Value first = config->HparamsOf(0);
  EXPECT_NE(first, config->HparamsOf(1));
  config->searcher.seed = 8;
  EXPECT_NE(first, config->HparamsOf(0));
}

TEST(ExperimentConfigTest, AGridHasEveryPointOnce) {
  auto config = ParseExperiment(kSpace);
  ASSERT_TRUE(config.ok());
  Value source = config->source;
  OverrideConfig(
      Value::Object{{"searcher", Value::Object{{"name", "grid"}, {"max_trials", Value()}}}},
      &source);
  source.if_object()->at("searcher").if_object()->erase("max_trials");
  config = ExperimentFromValue(source);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->searcher.max_trials, 3u * 2 * 3 * 2);
  std::set<std::string> points;
  for (std::uint64_t i = 0; i < 36; ++i) points.insert(EncodeJson(config->HparamsOf(i)));
  EXPECT_EQ(points.size(), 36u);
  EXPECT_EQ(*points.begin(), R"({"fixed":3,"n":2,"nested":{"drop":0.0,"lr":0.001},"opt":"adam"})");
  EXPECT_THAT(Complaint("entrypoint: b\nsearcher: {name: grid}\nhyperparameters: {a: {type: "
                        "double, minval: 1, maxval: 2}}"),
              HasSubstr("add count"));
}

TEST(ExperimentConfigTest, OverridesReachIntoMaps) {
  Value source = Value::Object{{"hyperparameters", Value::Object{{"lr", 0.1}, {"n", 1}}}};
  OverrideConfig(Value::Object{{"hyperparameters.lr", 0.2}, {"name", "x"}}, &source);
  EXPECT_EQ(EncodeJson(source), R"({"hyperparameters":{"lr":0.2,"n":1},"name":"x"})");
}

TEST(ExperimentConfigTest, ResourcesChooseTheLauncherAndWhatItIsAskedFor) {
  const auto config = ParseExperiment(R"(
entrypoint: python3 train.py
resources:
  launcher: slurm
  slots_per_trial: 2
  partition: gpu
  time: 01:30:00
  cpus_per_task: 4
  extra: ["--mail-type=END", "--nice"]
)");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const TrialConfig trial = config->TrialOf("1", 0, "/checkpoints");
  EXPECT_EQ(trial.launcher, "slurm");
  EXPECT_EQ(trial.world_size, 2);
  EXPECT_EQ(trial.resources.at("partition"), "gpu");
  EXPECT_EQ(trial.resources.at("time"), "01:30:00");
  EXPECT_EQ(trial.resources.at("cpus_per_task"), "4");
  EXPECT_EQ(trial.resources.at("extra"), "--mail-type=END\n--nice\n");
  const auto again = TrialConfigFromValue(ToValue(trial));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->launcher, trial.launcher);
  EXPECT_EQ(again->resources, trial.resources);

  const auto refusal = [](const std::string& resources) {
    return ParseExperiment("entrypoint: a\nresources: {" + resources + "}\n").status().ToString();
  };
  EXPECT_NE(refusal("launcher: slrum").find("slrum"), std::string::npos);
  EXPECT_NE(refusal("partition: gpu").find("partition"), std::string::npos)
      << "not on this machine";
  EXPECT_NE(refusal("launcher: slurm, partiton: gpu").find("partiton"), std::string::npos);
  EXPECT_NE(refusal("launcher: slurm, nodes: two").find("two"), std::string::npos);
  EXPECT_NE(refusal("launcher: slurm, slots: 3, nodes: 2").find("evenly"), std::string::npos);
  EXPECT_NE(refusal("launcher: slurm, extra: --array=1-3").find("--array"), std::string::npos);
  EXPECT_TRUE(ParseExperiment("entrypoint: a\nresources: {launcher: local}\n").ok());
}

TEST(ExperimentConfigTest, TrialsMayBeJobsOfRay) {
  const auto config = ParseExperiment(R"(
entrypoint: python3 train.py
resources:
  launcher: ray
  slots_per_trial: 2
  num_gpus: 0.5
  memory: 4G
  custom: {tpu: 1, disk: 0.25}
)");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const TrialConfig trial = config->TrialOf("1", 0, "/checkpoints");
  EXPECT_EQ(trial.launcher, "ray");
  EXPECT_EQ(trial.world_size, 2);
  EXPECT_EQ(trial.resources.at("num_gpus"), "0.5");
  EXPECT_EQ(trial.resources.at("memory"), "4G");
  EXPECT_EQ(trial.resources.at("custom"), "tpu=1\ndisk=0.25\n");

  const auto refusal = [](const std::string& resources) {
    return ParseExperiment("entrypoint: a\nresources: {" + resources + "}\n").status().ToString();
  };
  EXPECT_NE(refusal("launcher: ray, num_cpu: 1").find("num_cpu"), std::string::npos);
  EXPECT_NE(refusal("launcher: ray, partition: gpu").find("partition"), std::string::npos);
  EXPECT_NE(refusal("launcher: ray, num_gpus: two").find("two"), std::string::npos);
  EXPECT_NE(refusal("launcher: ray, custom: {tpu: many}").find("many"), std::string::npos);
  EXPECT_NE(refusal("launcher: ray, address: 'http://head'").find("address"), std::string::npos)
      << "that is the master's to say";
}

}  // namespace
}  // namespace cairn::master
