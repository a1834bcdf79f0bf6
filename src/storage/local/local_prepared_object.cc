#include "storage/local/local_prepared_object.h"

#include <fmt/format.h>

namespace cairn {

LocalPreparedObject::~LocalPreparedObject() {
  if (temporary_.file != nullptr) store_->RemoveTemporary(temporary_.name);
}

Status LocalPreparedObject::Create() {
  if (temporary_.file == nullptr || !*durable_) {
    return FailedPreconditionError(
        fmt::format("create \"{}\" in {}: its bytes are not durable", name_, store_->Describe()));
  }
  const LocalStore::Temporary temporary = std::move(temporary_);
  return store_->NameTemporary(temporary, name_, /*durable=*/true);
}

}  // namespace cairn
