#include "checkpoint/environment.h"

#include "checkpoint/repository.h"

namespace cairn {

namespace {

Status Publish(const Environment& env, const std::string& name, const std::string& bytes,
               bool durable) {
  if (!env.rules.create_only_records) return env.store->Put(name, bytes);
  Status created =
      durable ? env.store->Create(name, bytes) : env.store->CreateVolatile(name, bytes);
  if (!created.Is(Code::kAlreadyExists)) return created.WithContext("publish " + name);
  auto there = env.store->Get(name, kMaxManifestBytes);
  if (there.ok() && *there == bytes) return Status::Ok();
  return created.WithContext("publish " + name);
}

}  // namespace

Status PublishRecord(const Environment& env, const std::string& name, const std::string& bytes) {
  return Publish(env, name, bytes, /*durable=*/true);
}

Status PublishForTheLiving(const Environment& env, const std::string& name,
                           const std::string& bytes) {
  return Publish(env, name, bytes, /*durable=*/false);
}

}  // namespace cairn
