#include "serving/versions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status_macros.h"

namespace cairn::serving {

Versions::Versions(std::vector<ServedTable> tables, Options options) : options_(options) {
  for (ServedTable& table : tables) {
    tables_.push_back(std::make_unique<VersionedTable>(std::move(table), &epochs_));
  }
}

Versions::~Versions() = default;

std::ptrdiff_t Versions::Find(std::string_view name) const {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i]->options().name == name) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

Versions::Snapshot Versions::Acquire() const {
  // A version that was replaced meanwhile stays until the guard is gone; by then it is counted.
  const ReadEpochs::Guard guard(&epochs_);
  Node* node = visible_.load(std::memory_order_acquire);
  if (node == nullptr) return {};
  node->snapshots.fetch_add(1, std::memory_order_acq_rel);
  return {this, node};
}

// ---------------------------------------------------------------- updates

Status Versions::Begin(bool replace) {
  if (last_ == kMaxVersion) return ResourceExhaustedError("no numbers for versions are left");
  for (const auto& table : tables_) table->NoteUpdate();
  ++last_;
  for (const auto& table : tables_) table->Begin(last_, replace);
  return Status::Ok();
}

Result<Versions::Snapshot> Versions::Prepare(VersionFacts facts,
                                             std::shared_ptr<const Dense> dense) {
  for (const auto& table : tables_) RETURN_IF_ERROR(table->Finish());
  prepared_ = std::make_unique<Node>();
  prepared_->number = last_;
  prepared_->facts = std::move(facts);
  prepared_->facts.rows = 0;
  prepared_->dense = std::move(dense);
  for (const auto& table : tables_) prepared_->facts.rows += table->rows();
  prepared_->snapshots.fetch_add(1, std::memory_order_relaxed);
  return Snapshot(this, prepared_.get());
}

void Versions::Commit() {
  const MutexLock lock(&mu_);
  retired_.reserve(retired_.size() + kept_.size() + 1);  // for Trim, which must not fail
  kept_.push_back(std::move(prepared_));
  if (!held_) Show(kept_.back().get());
  Trim();
}

void Versions::Abort() {
  prepared_ = nullptr;
  for (const auto& table : tables_) table->Abort();
}

void Versions::Collect() {
  std::vector<Version> alive;
  {
    const MutexLock lock(&mu_);
    const ReadEpochs::Tag passed = epochs_.Passed();
    std::erase_if(retired_, [&](const std::unique_ptr<Node>& node) {
      return node->retired <= passed && node->snapshots.load(std::memory_order_acquire) == 0;
    });
    for (const auto& node : retired_) alive.push_back(node->number);
    for (const auto& node : kept_) alive.push_back(node->number);
  }
  std::sort(alive.begin(), alive.end());
  for (const auto& table : tables_) table->Collect(alive);
}

void Versions::Forget(const std::vector<std::string>& ids) {
  const MutexLock lock(&mu_);
  const Node* visible = visible_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i + 1 < kept_.size();) {
    const bool named = std::find(ids.begin(), ids.end(), kept_[i]->facts.id) != ids.end();
    if (!named || kept_[i].get() == visible) {
      ++i;
      continue;
    }
    kept_[i]->retired = epochs_.Retire();
    retired_.push_back(std::move(kept_[i]));
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// A version leaves the list oldest first; the visible one stays however old it is.
void Versions::Trim() {
  const Node* visible = visible_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; kept_.size() > options_.keep + 1 && i + 1 < kept_.size();) {
    if (kept_[i].get() == visible) {
      ++i;
      continue;
    }
    kept_[i]->retired = epochs_.Retire();
    retired_.push_back(std::move(kept_[i]));
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// ---------------------------------------------------------------- which one is visible

void Versions::Show(Node* node) { visible_.store(node, std::memory_order_release); }

Status Versions::Rollback(std::size_t n) {
  const MutexLock lock(&mu_);
  const Node* visible = visible_.load(std::memory_order_relaxed);
  std::size_t at = 0;
  while (at < kept_.size() && kept_[at].get() != visible) ++at;
  if (at == kept_.size() || n > at) {
    return FailedPreconditionError(fmt::format(
        "there are {} versions before the one that is served, not {}; see keep_versions",
        at == kept_.size() ? 0 : at, n));
  }
  held_ = true;
  Show(kept_[at - n].get());
  return Status::Ok();
}

template <typename Wanted>
Result<Versions::Node*> Versions::FindKept(const std::string& name, Wanted wanted) const {
  for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) {
    if (wanted((*it)->facts)) return it->get();
  }
  std::vector<std::string> there;
  for (const auto& node : kept_) {
    there.push_back(fmt::format("{} (step {})", node->facts.id, node->facts.step));
  }
  return NotFoundError(
      fmt::format("no version {} is kept; there are: {}", name, fmt::join(there, ", ")));
}

template <typename Wanted>
Status Versions::PinWhere(const std::string& name, Wanted wanted) {
  const MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Node* const found, FindKept(name, wanted));
  held_ = true;
  Show(found);
  return Status::Ok();
}

Result<Versions::Snapshot> Versions::AcquireStep(std::int64_t step) const {
  const MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Node* const found,
                   FindKept(fmt::format("of step {}", step),
                            [&](const VersionFacts& facts) { return facts.step == step; }));
  // It is in the list, so nobody frees it before the count is seen.
  found->snapshots.fetch_add(1, std::memory_order_acq_rel);
  return Snapshot(this, found);
}

Status Versions::Pin(std::string_view id) {
  return PinWhere(std::string(id), [&](const VersionFacts& facts) { return facts.id == id; });
}

Status Versions::PinStep(std::int64_t step) {
  return PinWhere(fmt::format("of step {}", step),
                  [&](const VersionFacts& facts) { return facts.step == step; });
}

void Versions::Resume() {
  const MutexLock lock(&mu_);
  held_ = false;
  if (!kept_.empty()) Show(kept_.back().get());
  Trim();
}

bool Versions::held() const {
  const MutexLock lock(&mu_);
  return held_;
}

std::vector<VersionFacts> Versions::kept() const {
  const MutexLock lock(&mu_);
  std::vector<VersionFacts> facts;
  for (const auto& node : kept_) facts.push_back(node->facts);
  return facts;
}

std::uint64_t Versions::bytes_in_use() const {
  std::uint64_t bytes = 0;
  for (const auto& table : tables_) bytes += table->bytes_in_use();
  return bytes;
}

std::uint64_t Versions::bytes_reserved() const {
  std::uint64_t bytes = 0;
  for (const auto& table : tables_) bytes += table->bytes_reserved();
  return bytes;
}

}  // namespace cairn::serving
