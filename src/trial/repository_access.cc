#include "trial/repository_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/choose_restore.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "format/records.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

/// NotFound also where its record is missing: an empty mount point is no repository.
Result<std::unique_ptr<Store>> OpenExisting(const std::string& repository) {
  ASSIGN_OR_RETURN(auto store, OpenStore(repository, {.create = false, .storage = {}}));
  RETURN_IF_ERROR(RepositoryReader(store.get()).ReadRecord().status());
  return store;
}

class RealRepositories final : public RepositoryAccess {
 public:
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    ASSIGN_OR_RETURN(const auto store, OpenExisting(repository));
    auto view = RepositoryReader(store.get()).Read();
    RETURN_IF_ERROR(view.status());
    RETURN_IF_ERROR(view->CheckAllRead());  // what is not in the list counts as deleted
    std::vector<FoundCheckpoint> found;
    for (const Checkpoint& checkpoint : view->checkpoints) {
      if (!checkpoint.counts || checkpoint.removed || checkpoint.foreign) continue;
      const CheckpointInfo info = MakeInfo(*store, checkpoint);
      FoundCheckpoint one{.id = info.id,
                          .steps = info.step,
                          .metadata = info.metadata,
                          .metrics = checkpoint.Metrics(),
                          .bytes = info.bytes,
                          .generation = info.generation,
                          .sequence = info.sequence,
                          .path = info.path,
                          .kind = info.kind,
                          .base = info.base,
                          .time = info.time,
                          .pinned = info.pinned};
      const Value* steps = info.metadata.Find("steps_completed");
      if (steps != nullptr && steps->is_int()) one.steps = steps->AsInt(info.step);
      if (checkpoint.reported_damaged) {
        ASSIGN_OR_RETURN(one.damage, FindDamage(store.get(), checkpoint));
      }
      found.push_back(std::move(one));
    }
    return found;
  }

  Result<std::string> Job(const std::string& repository) override {
    ASSIGN_OR_RETURN(const auto store, OpenStore(repository, {.create = false, .storage = {}}));
    ASSIGN_OR_RETURN(RepositoryRecord record, RepositoryReader(store.get()).ReadRecord());
    return std::move(record.job);
  }

  Result<std::uint64_t> NewestRun(const std::string& repository) override {
    auto store = OpenStore(repository, {.create = false, .storage = {}});
    if (store.status().Is(Code::kNotFound)) return std::uint64_t{0};
    RETURN_IF_ERROR(store.status());
    ASSIGN_OR_RETURN(const std::uint64_t newest, RepositoryReader(store->get()).NewestFence());
    if (newest == 0) return std::uint64_t{0};
    ASSIGN_OR_RETURN(const std::string bytes, (*store)->Get(names::Fence(newest), kMaxRecordBytes));
    // One that cannot be read says nothing, as for whoever opens the repository.
    const auto fence = Decode<FenceRecord>(bytes);
    return fence.ok() ? fence->run : 0;
  }

  Result<std::string> Claim(const std::string& repository, const std::string& job) override {
    ASSIGN_OR_RETURN(const auto store, OpenStore(repository, {.create = true, .storage = {}}));
    RepositoryReader reader(store.get());
    auto record = reader.ReadRecord();
    if (record.status().Is(Code::kNotFound)) {
      RepositoryRecord fresh;
      fresh.job = job;
      const Status made = store->Create(std::string(names::kRepository), Encode(fresh));
      if (!made.ok() && !made.Is(Code::kAlreadyExists)) return made;
      record = reader.ReadRecord();  // another may have been first
    }
    RETURN_IF_ERROR(record.status());
    return std::move(record->job);
  }

  Result<std::vector<std::string>> Remove(const std::string& repository, const Owner& owner,
                                          const std::vector<std::string>& ids) override {
    RETURN_IF_ERROR(OpenExisting(repository).status());  // the manager would make a new one
    ManagerOptions options{.directory = repository, .job = owner.job, .run = owner.run};
    options.retention.keep_last = std::nullopt;
    ASSIGN_OR_RETURN(auto manager, CheckpointManager::Open(std::move(options)));
    std::vector<std::string> gone;
    Status failed;
    // Newest first: increments go before what they build on.
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      const Status removed = manager->Delete(*id);
      if (removed.ok() || removed.Is(Code::kNotFound)) {
        gone.push_back(*id);
      } else {
        failed = removed;
        LogWarning(fmt::format("retention of {}: {}", repository, removed.ToString()));
      }
    }
    RETURN_IF_ERROR(manager->Close());
    if (gone.empty() && !failed.ok()) return failed;
    return gone;
  }

  Status Tidy(const std::string& repository, const Owner& owner) override {
    const auto store = OpenExisting(repository);
    if (store.status().Is(Code::kNotFound)) return Status::Ok();
    RETURN_IF_ERROR(store.status());
    const auto view = RepositoryReader(store->get()).Read();
    RETURN_IF_ERROR(view.status());
    const auto half_removed = [](const Checkpoint& one) { return one.removed && !one.foreign; };
    if (view->unfinished.empty() && std::ranges::none_of(view->checkpoints, half_removed)) {
      return Status::Ok();
    }
    return Remove(repository, owner, {}).status();  // whoever opens it sweeps
  }

  Status Pin(const std::string& repository, const std::string& id, bool pinned) override {
    RETURN_IF_ERROR(OpenExisting(repository).status());
    ASSIGN_OR_RETURN(auto manager,
                     CheckpointManager::Open({.directory = repository, .read_only = true}));
    RETURN_IF_ERROR(pinned ? manager->Pin(id) : manager->Unpin(id));
    return manager->Close();
  }
};

}  // namespace

Value CompletedBody(const FoundCheckpoint& found) {
  return Value::Object{{"id", found.id},
                       {"steps_completed", found.steps},
                       {"metadata", found.metadata},
                       {"metrics", found.metrics},
                       {"bytes", found.bytes},
                       {"generation", found.generation},
                       {"sequence", found.sequence},
                       {"path", found.path},
                       {"kind", found.kind},
                       {"base", found.base},
                       {"time", found.time}};
}

std::unique_ptr<RepositoryAccess> RepositoryAccess::Real() {
  return std::make_unique<RealRepositories>();
}

}  // namespace cairn
