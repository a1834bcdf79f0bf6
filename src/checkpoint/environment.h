#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/ids.h"
#include "storage/store.h"

namespace cairn {

/// Rules of docs/protocol.md that a test can switch off, one at a time, to see that the explorer of
/// interleavings or the crash enumeration notices. All are on in the product.
struct ProtocolRules {
  bool fence_before_listing = true;        // list the checkpoints only after the own fence is there
  bool create_only_records = true;         // of two writers of a record only one wins
  bool readers_obey_seals = true;          // a manifest counts only by the newest seal
  bool reread_fence_before_ack = true;     // overtaken after the commit: never acknowledge
  bool reread_fence_before_delete = true;  // overtaken before a removal: delete nothing
  bool remove_note_first = true;           // a removal announces itself before the manifest goes
  bool retire_names = true;         // names that an older writer may be deleting are not reused
  bool check_part_identity = true;  // a part counts only with the attempt and uuid expected
  bool latest_by_sequence = true;   // latest is the newest commit, not the greatest step
  bool know_own_fence = true;       // that of our number may be another's: all was made again
  // The mends of docs/decisions/0005.
  bool reread_manifest_after_note = true;  // a note of what was removed meanwhile is no success
  bool reread_when_moved = true;           // a pass in which something vanished is made again
  bool notes_before_manifest = true;       // a manifest seen after its notes was not being removed
  bool notes_name_checkpoint = true;       // a note is about one checkpoint, not about a name
  bool close_older = true;                 // of openings at once, no older one seals any more
  bool compare_tags = true;                // a copy on a shelf counts only while it has the tag
  // Of increments.
  bool increments_go_first = true;         // removed before what they build on
  bool judge_by_commit_generation = true;  // what compact wrote counts by who committed it
};

/// What the engine stands on; tests replace each piece.
struct Environment {
  std::shared_ptr<Store> store;  // shared: handles of saves in flight outlive the manager
  Clock* clock = Clock::System();
  IdSource* ids = IdSource::System();
  std::string host;
  std::int64_t pid = 0;
  ProtocolRules rules;
  /// Opened in order to free room: its records may take what is kept in reserve (reserve.h).
  bool frees_room = false;
  /// A tool, which works for a moment on what is another's: it does not open what may have a living
  /// writer, also where no lock says so, unless it is to take over.
  bool tool = false;
  /// Told the name of each protocol step when it begins; must be quick. For crash tests, which
  /// report which step each kill hit.
  std::function<void(std::string_view)> on_step;

  void Step(std::string_view name) const {
    if (on_step) on_step(name);
  }
};

/// After that outcome of publishing a record it may still appear: a request that was given up may
/// reach an object store later.
bool MayAppearLate(const Environment& env, const Status& published);

/// Publishes a record that only one writer may publish: OK when the name is now ours (also by an
/// earlier, retried request), AlreadyExists when another's bytes stand there.
Status PublishRecord(const Environment& env, const std::string& name, const std::string& bytes);
/// The same for one that a write session has prepared; null: for one that it has not. Unavailable
/// when somebody deleted what was prepared.
Status PublishPrepared(const Environment& env, const std::string& name, const std::string& bytes,
                       PreparedObject* prepared);
/// The same for a record that only living processes read, such as those of the meeting of the ranks
/// (joins, starts, attempts, parts), which a crash of the machine ends: it is not made durable.
Status PublishForTheLiving(const Environment& env, const std::string& name,
                           const std::string& bytes, AfterCrash crash = AfterCrash::kAnything);

}  // namespace cairn
