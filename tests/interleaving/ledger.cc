#include "tests/interleaving/ledger.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "format/manifest.h"
#include "format/records.h"

namespace cairn::interleaving {
namespace {

std::string DirectoryOf(const std::string& name) { return name.substr(0, name.find('/')); }

bool IsManifest(const std::string& name) { return name.ends_with("/manifest.json"); }
bool IsNote(const std::string& name) { return name.find("/notes/") != name.npos; }

std::string Named(const Ledger::Commit& commit) {
  return "the save of step " + std::to_string(commit.step) + " by actor " +
         std::to_string(commit.actor) + " (generation " + std::to_string(commit.generation) +
         ", sequence " + std::to_string(commit.sequence) + ", " + commit.directory + ")";
}

/// Of a checkpoint with all its files as they are now.
std::uint64_t DigestOf(const Checkpoint& checkpoint, const ObjectDigests& objects) {
  std::string text = checkpoint.manifest->id;
  for (const ManifestFile& file : checkpoint.manifest->files) {
    const auto it =
        objects.find(file.ref.empty() ? names::Path(checkpoint.directory, file.path) : file.ref);
    text += " " + (it == objects.end() ? "missing" : std::to_string(it->second));
  }
  return Xxh3(text);
}

Ledger::Place PlaceOf(const Ledger::Commit& commit) { return {commit.generation, commit.sequence}; }

}  // namespace

void Ledger::Fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

void Ledger::Saving(int actor, std::int64_t step, std::int64_t value) {
  values_[{actor, step}] = value;
}

void Ledger::Wrote(int actor, const std::string& name, std::string_view bytes) {
  if (IsManifest(name)) {
    auto manifest = DecodeManifest(bytes);
    if (!manifest.ok()) return Fail(name + ": " + manifest.status().ToString());
    Commit commit;
    commit.id = manifest->id;
    commit.directory = DirectoryOf(name);
    commit.generation = manifest->generation;
    commit.sequence = manifest->sequence;
    commit.step = manifest->step;
    commit.actor = actor;
    commit.late = fences_.upper_bound(manifest->generation) != fences_.end();
    for (const std::string& participant : manifest->participants) {
      int who = actor;
      if (manifest->participants.size() > 1 && participant != manifest->participants.front()) {
        who = joined_[admitted_[manifest->generation][participant]];
      }
      commit.state.push_back(values_[{who, manifest->step}]);
    }
    for (const auto& [id, other] : commits_) {
      if (other.generation == commit.generation && other.actor != actor) {
        Fail("two writers commit in one generation: " + Named(other) + " and " + Named(commit));
      }
    }
    manifests_[commit.directory] = commit.id;
    commits_[commit.id] = std::move(commit);
    return;
  }
  if (IsNote(name)) {
    auto note = Decode<NoteRecord>(bytes);
    if (!note.ok()) return Fail(name + ": " + note.status().ToString());
    const auto it = commits_.find(note->checkpoint);
    if (it == commits_.end()) return Fail(name + " is about a checkpoint that nobody committed");
    if (note->kind == NoteKind::kRemove) it->second.removers.insert(note->generation);
    if (note->kind == NoteKind::kPin) it->second.pin_asked = true;
    return;
  }
  if (!name.starts_with("generations/")) return;
  if (auto seal = Decode<SealRecord>(bytes); seal.ok()) {
    seals_[seal->generation] = {seal->commits.begin(), seal->commits.end()};
  } else if (auto fence = Decode<FenceRecord>(bytes); fence.ok()) {
    fences_[fence->generation] = actor;
    generations_[actor] = fence->generation;
  } else if (auto join = Decode<JoinRecord>(bytes); join.ok()) {
    joined_[join->uuid] = actor;
  } else if (auto start = Decode<StartRecord>(bytes); start.ok()) {
    admitted_[start->generation] = {start->participants.begin(), start->participants.end()};
  }
}

void Ledger::Deleted(int actor, const std::string& name) {
  if (!IsManifest(name)) return;
  const auto at = manifests_.find(DirectoryOf(name));
  if (at == manifests_.end()) return;
  commits_[at->second].removers.insert(GenerationOf(actor));
  manifests_.erase(at);
}

void Ledger::Acknowledged(int actor, const std::string& id) {
  const auto it = commits_.find(id);
  if (it == commits_.end()) {
    return Fail("actor " + std::to_string(actor) + " acknowledged a save that has no manifest");
  }
  if (it->second.late) {
    Fail(Named(it->second) + " was acknowledged although its writer had been overtaken before");
  }
  it->second.acknowledged = true;
}

void Ledger::PinAcknowledged(const std::string& id) {
  const auto it = commits_.find(id);
  if (it == commits_.end()) return Fail("a pin of an unknown checkpoint was acknowledged");
  it->second.pinned = true;
}

void Ledger::RestoredState(int actor, const std::string& id, const State& state,
                           std::optional<Place> floor) {
  const std::string who = "actor " + std::to_string(actor);
  const auto it = commits_.find(id);
  if (it == commits_.end()) return Fail(who + " restored a checkpoint that nobody committed");
  if (it->second.state != state) {
    return Fail(who + " restored something else than " + Named(it->second) + " holds");
  }
  if (floor && PlaceOf(it->second) < *floor) {
    Fail(who + " restored " + Named(it->second) + " although a newer save (generation " +
         std::to_string(floor->first) + ", sequence " + std::to_string(floor->second) +
         ") was acknowledged before it looked");
  }
}

void Ledger::RestoredNothing(int actor, std::optional<Place> floor) {
  if (!floor) return;
  Fail("actor " + std::to_string(actor) + " found nothing to restore although a save (generation " +
       std::to_string(floor->first) + ", sequence " + std::to_string(floor->second) +
       ") was acknowledged before it looked");
}

/// A removal counts when its owner was not overtaken by a seal that names the checkpoint.
bool Ledger::RemovedByOwner(const Commit& commit) const {
  std::uint64_t owner = commit.generation;
  for (const auto& [generation, sealed] : seals_) {
    if (sealed.contains(commit.id)) owner = std::max(owner, generation);
  }
  return !commit.removers.empty() && *commit.removers.rbegin() >= owner;
}

std::optional<Ledger::Place> Ledger::NewestAcknowledged() const {
  std::optional<Place> newest;
  for (const auto& [id, commit] : commits_) {
    if (!commit.acknowledged || RemovedByOwner(commit)) continue;
    newest = std::max(newest.value_or(Place{}), PlaceOf(commit));
  }
  return newest;
}

const Ledger::Commit* Ledger::Find(const std::string& id) const {
  const auto it = commits_.find(id);
  return it == commits_.end() ? nullptr : &it->second;
}

std::string Ledger::IdIn(const std::string& directory) const {
  const auto it = manifests_.find(directory);
  return it == manifests_.end() ? "" : it->second;
}

std::uint64_t Ledger::GenerationOf(int actor) const {
  const auto it = generations_.find(actor);
  return it == generations_.end() ? 0 : it->second;
}

std::string Ledger::CheckState(Store* store, const Checkpoint& checkpoint, const Commit& commit) {
  auto open = OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest);
  if (!open.ok()) return Named(commit) + " counts but is not whole: " + open.status().ToString();
  std::vector<VerifyProblem> problems;
  auto verified = VerifyFiles(store, **open, {}, &problems);
  if (!verified.ok()) return Named(commit) + ": " + verified.status().ToString();
  if (!problems.empty()) return Named(commit) + " counts but is damaged: " + problems[0].what;
  auto restored = RestoreCheckpoint(store, open->get(), {.allocate = true},
                                    checkpoint.manifest->participants[0], {});
  if (!restored.ok()) return Named(commit) + ": " + restored.status().ToString();
  if (StateOf(*restored) != commit.state) {
    return Named(commit) + " holds another state than was saved";
  }
  return "";
}

State StateOf(const Restored& restored) {
  State state;
  for (const OwnedTensor& tensor : restored.tensors) {
    state.resize(tensor.bytes / sizeof(state[0]));
    std::memcpy(state.data(), tensor.data.get(), tensor.bytes);
  }
  return state;
}

std::string Ledger::Check(Store* store, const ObjectDigests& objects, const ProtocolRules& rules,
                          std::set<std::uint64_t>* verified) {
  if (!failure_.empty()) return failure_;
  RepositoryReader reader(store, rules);
  auto view = reader.Read();
  if (view.status().Is(Code::kNotFound)) {
    return commits_.empty() ? "" : "cairn.json is gone";
  }
  if (!view.ok()) return "the repository cannot be read: " + view.status().ToString();

  const std::uint64_t newest_seal = seals_.empty() ? 0 : seals_.rbegin()->first;
  std::set<std::string> counting;
  const Commit* newest = nullptr;
  for (const Checkpoint& checkpoint : view->checkpoints) {
    if (!checkpoint.counts) continue;
    const Commit* commit = Find(checkpoint.manifest->id);
    if (commit == nullptr) return checkpoint.directory + " counts, but nobody committed it";
    counting.insert(commit->id);
    if (checkpoint.pinned && !commit->pin_asked) {
      return Named(*commit) + " is pinned, but nobody asked for that";
    }
    if (commit->generation != newest_seal && !seals_[newest_seal].contains(commit->id)) {
      return Named(*commit) + " counts although the newest seal (generation " +
             std::to_string(newest_seal) + ") does not name it";
    }
    if (newest == nullptr || PlaceOf(*newest) < PlaceOf(*commit)) newest = commit;
    const std::uint64_t digest = DigestOf(checkpoint, objects);
    if (verified->contains(digest)) continue;
    std::string wrong = CheckState(store, checkpoint, *commit);
    if (!wrong.empty()) return wrong;
    verified->insert(digest);
  }
  for (const auto& [id, commit] : commits_) {
    if (!commit.acknowledged || counting.contains(id)) continue;
    if (commit.pinned) return Named(commit) + " is pinned and no longer counts";
    if (!RemovedByOwner(commit)) {
      return Named(commit) + " was acknowledged and does not count any more";
    }
  }
  const Checkpoint* latest = view->Latest();
  if ((latest == nullptr) != (newest == nullptr) ||
      (latest != nullptr && latest->manifest->id != newest->id)) {
    return "the latest is not the newest commit that counts";
  }
  return "";
}

std::uint64_t Ledger::Hash() const {
  // Stores and histories tell everything else.
  std::string facts;
  for (const auto& [id, commit] : commits_) {
    facts += id;
    facts += commit.late ? 'l' : '-';
    facts += commit.acknowledged ? 'a' : '-';
    facts += commit.pinned ? 'p' : '-';
    facts += commit.pin_asked ? 'q' : '-';
    for (const std::int64_t value : commit.state) facts += std::to_string(value) + ",";
    facts += ';';
    for (const std::uint64_t remover : commit.removers) facts += std::to_string(remover) + ",";
  }
  return Xxh3(facts);
}

}  // namespace cairn::interleaving
