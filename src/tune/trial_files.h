#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "storage/store.h"
#include "tune/tuner.h"

namespace cairn::tune {

/// Files in the directories of trials that people and other tools read: result.json, progress.csv,
/// params.json, error.txt and TensorBoard's events; and what a scheduler decided, pbt_global.txt
/// (docs/format/tune.md, "Files for people").
///
/// They follow from the record. After a restart, and when a trial goes back to a checkpoint, they
/// are written again up to where it goes on, so that no iteration is in them twice and none is
/// missing. What cannot be written (a full disk) holds up nothing: it is made from the record when
/// the experiment ends or goes on. Of experiments in a bucket or on HDFS they are stored whole:
/// params.json when a trial starts, the others when it ends and when the experiment does.
///
/// Of one thread.
class TrialFiles {
 public:
  /// The reports of a trial that are on record.
  using Reports = std::function<Value::List(const std::string& trial)>;
  TrialFiles(std::string directory, Reports reports);

  /// The trials that are there when it begins, as Tuner::Trials tells of them.
  void Meet(const Value& trials);
  /// What the scheduler decided before, when its log was made anew from the record.
  void MeetPolicy(const Value::List& entries);
  void Tell(const TuneNews& news);
  void TellPolicy(const Value::List& entries);
  /// At the end: writes what could not be written.
  void Finish();

 private:
  struct Known {
    Value config = Value::Object{};
    std::string error;
    bool begun = false;  // it has files, or should
    bool ended = false;
    bool failed = false;
    std::int64_t last = 0;             // the iteration of the last line
    bool written = false;              // result.json and the others are there, up to `last`
    std::vector<std::string> columns;  // of progress.csv
    std::vector<Value> unwritten;      // reports since then, with all keys
  };

  void OnResult(const std::string& id, const Value& report);
  void OnRun(const std::string& id, std::int64_t iteration);
  void OnStarted(const std::string& id);
  void OnEnded(const std::string& id, bool failed);
  void Flush(const std::string& id);

  Status Append(const std::string& id, Known* trial);
  Status WriteParams(const std::string& id, const Known& trial);
  Status WriteError(const std::string& id, const Known& trial);
  /// The files that grow, from the record.
  Status WriteWhole(const std::string& id, Known* trial);
  Status WriteProgress(const std::string& id, Known* trial, const std::vector<Value>& results);
  Status WriteAll(const std::string& id, Known* trial);
  std::vector<Value> Results(const std::string& id, const Known& trial);

  std::set<std::string> ReadComplete();
  void AddComplete(const std::string& id);
  void WriteComplete();
  /// Whether it worked; those of whom it did not are written at the end.
  bool Took(const std::string& id, const Status& status);

  Status Put(const std::string& name, std::string_view bytes);
  Status AppendTo(const std::string& name, std::string_view bytes);
  Status Remove(const std::string& name);
  std::string Read(const std::string& name);
  Result<Store*> store();

  const std::string directory_;  // a path, or the URL of a store without append
  const bool remote_;
  const Reports reports_;
  std::unique_ptr<Store> store_;
  std::map<std::string, Known, std::less<>> trials_;
  std::set<std::string, std::less<>> unflushed_;
  std::set<std::string, std::less<>> behind_;
  std::set<std::string> complete_;   // trials whose files are all there
  std::size_t listed_complete_ = 0;  // of a store: as many as were there when the list was put
  Value::List policy_;               // of a store
  bool warned_ = false;
};

}  // namespace cairn::tune
