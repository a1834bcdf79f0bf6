#include <unistd.h>

#include "base/living_process.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/generation.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"

// What an opening asks the fences, and what it leaves for others to ask.
//
//  - Before anything is acknowledged or deleted: is there a higher fence, and is the one of our
//    number still ours? Fences are numbered without gaps and never deleted by the engine, so the
//    next number tells whether we were overtaken. Our own may be gone: the directory was deleted,
//    or its disk is. Or it may be another's: the directory was made again, and the run that did so
//    began to count from 1 as well. Nothing there is ours then, whatever its name.
//  - At the end, where the store has no locks: an end record, which tells tools that nobody lives
//    who has that fence. Without one they ask whether that process lives, if it is one of theirs
//    to know, and else refuse. No clock says how long somebody who was not heard of is alive.

namespace cairn {
namespace {

std::string ProcessOf(const FenceRecord& fence) {
  return "the process " + std::to_string(fence.pid) + " on " + fence.host;
}

std::string InBrackets(const FenceRecord& fence) {
  return " (host " + fence.host + ", pid " + std::to_string(fence.pid) + ")";
}

/// Nothing when it is lost or damaged.
Result<std::optional<FenceRecord>> ReadFence(Store* store, std::uint64_t generation) {
  const auto bytes = store->Get(names::Fence(generation), kMaxRecordBytes);
  if (!bytes.ok() && !bytes.status().Is(Code::kNotFound)) return bytes.status();
  const auto fence = bytes.ok() ? Decode<FenceRecord>(*bytes) : bytes.status();
  return fence.ok() ? std::optional(*fence) : std::nullopt;
}

/// The same for messages.
std::optional<FenceRecord> FenceIfKnown(Store* store, std::uint64_t generation) {
  const auto fence = ReadFence(store, generation);
  return fence.ok() ? *fence : std::nullopt;
}

}  // namespace

Status Generation::JudgeNext(const Result<ObjectInfo>& next) const {
  if (next.status().Is(Code::kNotFound)) return Status::Ok();
  if (!next.ok()) return next.status();
  const auto fence = FenceIfKnown(env_.store.get(), number_ + 1);
  return AbortedError("fenced: generation " + std::to_string(number_) + " of \"" +
                      env_.store->Describe() + "\" was overtaken by generation " +
                      std::to_string(number_ + 1) + (fence ? InBrackets(*fence) : ""));
}

Status Generation::JudgeOwn(const Result<std::string>& own) const {
  if (!env_.rules.know_own_fence) return Status::Ok();
  const std::string where = "\"" + env_.store->Describe() + "\"";
  if (own.status().Is(Code::kNotFound)) {
    // Whoever writes into a directory that was taken away, with its disk or by hand, makes it anew:
    // nobody would find there what is acknowledged now.
    const bool disk = env_.store->traits().directories;
    return UnavailableError(where + " is not what was opened any more: its records are gone. " +
                            (disk ? "Is its disk mounted? Put it back, or open it again"
                                  : "Were its objects deleted? Put them back, or open it again"));
  }
  if (!own.ok()) return own.status();
  const auto fence = Decode<FenceRecord>(*own);
  if (!fence.ok()) return Status::Ok();  // it rotted, in its place
  if (fence->uuid == fence_uuid()) return Status::Ok();
  return AbortedError(
      "fenced: " + where + " was replaced: it was deleted and made again, and its " +
      "generation " + std::to_string(number_) + " is another's by now" + InBrackets(*fence) +
      ". What was saved before is gone; end this process, or " + "open the repository again");
}

Status Generation::CheckOwn() const {
  return JudgeOwn(env_.store->Get(names::Fence(number_), kMaxRecordBytes));
}

Status Generation::CheckFence() const {
  Store* store = env_.store.get();
  if (lock_ != nullptr) lock_->Renew();  // a courtesy, which is not to end with somebody's backup
  RETURN_IF_ERROR(store->Refresh(std::string(names::kGenerations)));
  Result<ObjectInfo> next = NotFoundError("not looked for");
  Result<std::string> own = NotFoundError("not looked for");
  ForEachRequest(*store, 2, [&](std::size_t i) {
    if (i == 0) {
      next = store->Stat(names::Fence(number_ + 1));
    } else {
      own = store->Get(names::Fence(number_), kMaxRecordBytes);
    }
  });
  RETURN_IF_ERROR(JudgeNext(next));
  return JudgeOwn(own);
}

Status Generation::CheckOvertaken() const {
  Store* store = env_.store.get();
  if (store->traits().directories) return CheckFence();
  RETURN_IF_ERROR(store->Refresh(std::string(names::kGenerations)));
  return JudgeNext(store->Stat(names::Fence(number_ + 1)));
}

Result<bool> Generation::IsOfFence(std::uint64_t generation, const std::string& uuid) const {
  ASSIGN_OR_RETURN(const auto fence, ReadFence(env_.store.get(), generation));
  return !fence || fence->uuid == uuid;
}

Status Generation::HeldByAnother() const {
  RepositoryReader reader(env_.store.get(), env_.rules);
  const auto newest = reader.NewestFence();
  const auto fence =
      newest.ok() && *newest > 0 ? FenceIfKnown(env_.store.get(), *newest) : std::nullopt;
  const std::string what = "\"" + env_.store->Describe() + "\" is being written by ";
  if (!env_.tool) {
    return UnavailableError(what + "a living process" + (fence ? InBrackets(*fence) : "") +
                            "; stop it, or open with takeover to fence it out");
  }
  return UnavailableError(what + (fence ? ProcessOf(*fence) : "a living process") +
                          ": wait until it ends or stop it; --takeover goes on all the same, and " +
                          "fences it out");
}

Status Generation::CheckEnded(std::uint64_t newest) const {
  Store* store = env_.store.get();
  ASSIGN_OR_RETURN(const auto fence, ReadFence(store, newest));
  if (fence && fence->uuid == uuid_) return Status::Ok();
  const auto bytes = store->Get(names::End(newest), kMaxRecordBytes);
  if (!bytes.ok() && !bytes.status().Is(Code::kNotFound)) return bytes.status();
  const auto end = bytes.ok() ? Decode<EndRecord>(*bytes) : bytes.status();
  // Of another uuid: of one that had this number before the directory was made again.
  if (end.ok() && (!fence || end->uuid == fence->uuid)) return Status::Ok();
  const std::string where = "\"" + store->Describe() + "\"";
  const std::string remedy = "if it is gone, repeat the command with --takeover";
  if (!fence) {
    return UnavailableError(where + " may have a living writer: its newest record of one, " +
                            names::Fence(newest) + ", cannot be read; " + remedy);
  }
  const bool here = !fence->host.empty() && fence->host == env_.host;
  switch (here ? LifeOf(fence->pid, fence->process) : ProcessLife::kUnknown) {
    case ProcessLife::kEnded:
      return Status::Ok();
    case ProcessLife::kLives:
      return HeldByAnother();
    case ProcessLife::kUnknown:
      break;
  }
  return UnavailableError(
      where + " is being written by " + ProcessOf(*fence) +
      ", as far as can be seen from here: it opened it and has not closed it. " +
      "Wait until it ends or stop it; " + remedy);
}

void Generation::End() {
  // Who holds a lock is known to live as long as it is held. Others than the committer write
  // nothing that counts without it.
  if (!lockless_ || number_ == 0 || ended_) return;
  ended_ = true;
  const Status own = CheckOwn();
  if (own.Is(Code::kAborted)) return;  // another's by now
  Status published = own;
  if (own.ok()) {
    env_.Step("close: end");
    published = PublishForTheLiving(env_, names::End(number_),
                                    Encode(EndRecord{.generation = number_, .uuid = uuid_}));
  }
  if (published.ok()) return;
  LogWarning("\"" + env_.store->Describe() +
             "\" was closed, but that could not be noted there, so that tools will ask for "
             "--takeover: " +
             published.ToString());
}

void Generation::Release() {
  End();
  lock_.reset();
}

Generation::~Generation() {
  if (options_.ends_with_object && getpid() == opener_) Release();  // not that of a forked child
}

}  // namespace cairn
