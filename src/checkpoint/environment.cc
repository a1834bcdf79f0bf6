#include "checkpoint/environment.h"

#include "checkpoint/repository.h"

namespace cairn {

Status PublishRecord(const Environment& env, const std::string& name, const std::string& bytes) {
  if (!env.rules.create_only_records) return env.store->Put(name, bytes);
  Status created = env.store->Create(name, bytes);
  if (!created.Is(Code::kAlreadyExists)) return created.WithContext("publish " + name);
  auto there = env.store->Get(name, kMaxManifestBytes);
  if (there.ok() && *there == bytes) return Status::Ok();
  return created.WithContext("publish " + name);
}

}  // namespace cairn
