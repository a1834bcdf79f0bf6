#include "trial/core_repository.h"

#include <chrono>
#include <utility>

#include "base/status_macros.h"

namespace cairn::core {
namespace {

// Ranks come when they come: a slow import on one of them is no failure.
constexpr std::chrono::nanoseconds kJoinTime = std::chrono::seconds(120);

}  // namespace

Result<CheckpointManager*> CoreRepository::Alone() {
  if (!ranks_->is_chief()) return InternalError("only rank 0 writes alone");
  if (manager_ == nullptr || together_) RETURN_IF_ERROR(Open(/*together=*/false));
  return manager_.get();
}

Result<CheckpointManager*> CoreRepository::Together() {
  if (ranks_->size() == 1) return Alone();
  ASSIGN_OR_RETURN(const std::vector<Value> ready,
                   ranks_->AllGather(manager_ != nullptr && together_));
  for (const Value& one : ready) {
    if (one == Value(true)) continue;
    RETURN_IF_ERROR(Open(/*together=*/true));
    break;
  }
  return manager_.get();
}

Result<CheckpointManager*> CoreRepository::Owner() {
  if (manager_ == nullptr) return Alone();
  return manager_.get();
}

Status CoreRepository::Open(bool together) {
  RETURN_IF_ERROR(Close());
  if (together) RETURN_IF_ERROR(ranks_->Barrier());  // the last writer has given up its lock
  ManagerOptions options = options_;
  options.rank = together ? ranks_->rank() : 0;
  options.world_size = together ? ranks_->size() : 1;
  options.join_deadline = kJoinTime;
  together_ = together;
  ASSIGN_OR_RETURN(manager_, CheckpointManager::Open(std::move(options)));
  return Status::Ok();
}

Result<CheckpointInfo> CoreRepository::Wait(const std::string& id, const SaveHandle& handle) const {
  auto saved = handle.Wait();
  if (saved.ok() || !saved.status().Is(Code::kAborted) || ranks_->is_chief()) return saved;
  const auto there = ListOf(options_.directory);
  if (!there.ok()) return saved;
  if (auto info = FindById(*there, id)) return *std::move(info);
  return saved;
}

Result<std::vector<CheckpointInfo>> CoreRepository::List() const {
  return manager_ != nullptr ? manager_->List() : ListOf(options_.directory);
}

Result<std::vector<CheckpointInfo>> CoreRepository::ListOf(const std::string& directory) {
  const auto reader = CheckpointManager::Open({.directory = directory, .read_only = true});
  if (reader.status().Is(Code::kNotFound)) return std::vector<CheckpointInfo>();
  if (!reader.ok()) return reader.status();
  return (*reader)->List();
}

Status CoreRepository::Close() {
  if (manager_ == nullptr) return Status::Ok();
  return std::exchange(manager_, nullptr)->Close();
}

std::optional<CheckpointInfo> FindById(const std::vector<CheckpointInfo>& infos,
                                       const std::string& id) {
  for (const CheckpointInfo& info : infos) {
    if (info.id == id) return info;
  }
  return std::nullopt;
}

}  // namespace cairn::core
