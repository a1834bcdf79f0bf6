#include "checkpoint/environment.h"

#include "checkpoint/repository.h"

namespace cairn {

namespace {

/// `created` is the answer to the request to create it.
Status Judge(const Environment& env, const std::string& name, const std::string& bytes,
             const Status& created) {
  if (!created.Is(Code::kAlreadyExists)) return created.WithContext("publish " + name);
  auto there = env.store->Get(name, kMaxManifestBytes);
  if (there.ok() && *there == bytes) return Status::Ok();
  return created.WithContext("publish " + name);
}

}  // namespace

bool MayAppearLate(const Environment& env, const Status& published) {
  return !env.store->traits().hard_links &&
         (published.Is(Code::kUnavailable) || published.Is(Code::kDeadlineExceeded));
}

Status PublishRecord(const Environment& env, const std::string& name, const std::string& bytes) {
  if (!env.rules.create_only_records) return env.store->Put(name, bytes);
  return Judge(env, name, bytes, env.store->Create(name, bytes));
}

Status PublishPrepared(const Environment& env, const std::string& name, const std::string& bytes,
                       PreparedObject* prepared) {
  if (prepared == nullptr || !env.rules.create_only_records) return PublishRecord(env, name, bytes);
  const Status created = prepared->Create();
  if (created.Is(Code::kNotFound)) {
    // What was prepared lay beside the files that it speaks of. They went with it.
    return UnavailableError("publish " + name +
                            ": its directory was deleted while it was being written");
  }
  return Judge(env, name, bytes, created);
}

Status PublishForTheLiving(const Environment& env, const std::string& name,
                           const std::string& bytes, AfterCrash crash) {
  if (!env.rules.create_only_records) return env.store->Put(name, bytes);
  return Judge(env, name, bytes, env.store->CreateVolatile(name, bytes, crash));
}

}  // namespace cairn
