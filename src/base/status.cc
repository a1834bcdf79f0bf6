#include <cairn/status.h>

#include <stdexcept>

namespace cairn {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kNotFound:
      return "NotFound";
    case Code::kAlreadyExists:
      return "AlreadyExists";
    case Code::kCorruption:
      return "Corruption";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kFailedPrecondition:
      return "FailedPrecondition";
    case Code::kUnavailable:
      return "Unavailable";
    case Code::kDeadlineExceeded:
      return "DeadlineExceeded";
    case Code::kAborted:
      return "Aborted";
    case Code::kResourceExhausted:
      return "ResourceExhausted";
    case Code::kPermissionDenied:
      return "PermissionDenied";
    case Code::kCancelled:
      return "Cancelled";
    case Code::kUnimplemented:
      return "Unimplemented";
    case Code::kInternal:
      return "Internal";
  }
  return "Unknown";
}

Status::Status(Code code, std::string message, Reason reason) {
  if (code != Code::kOk) rep_ = std::make_shared<const Rep>(Rep{code, reason, std::move(message)});
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(code())) + ": " + std::string(message());
}

Status Status::WithContext(std::string_view context) const& {
  if (ok()) return *this;
  return Status(code(), std::string(context) + ": " + std::string(message()), reason());
}

Status Status::WithContext(std::string_view context) && {
  return std::as_const(*this).WithContext(context);
}

Status OwnedByAnotherJobError(std::string message) {
  return Status(Code::kFailedPrecondition, std::move(message), Reason::kOwnedByAnotherJob);
}
Status MismatchError(std::string message) {
  return Status(Code::kFailedPrecondition, std::move(message), Reason::kMismatch);
}

#define CAIRN_DEFINE_ERROR(name) \
  Status name##Error(std::string message) { return Status(Code::k##name, std::move(message)); }
CAIRN_DEFINE_ERROR(NotFound)
CAIRN_DEFINE_ERROR(AlreadyExists)
CAIRN_DEFINE_ERROR(Corruption)
CAIRN_DEFINE_ERROR(InvalidArgument)
CAIRN_DEFINE_ERROR(FailedPrecondition)
CAIRN_DEFINE_ERROR(Unavailable)
CAIRN_DEFINE_ERROR(DeadlineExceeded)
CAIRN_DEFINE_ERROR(Aborted)
CAIRN_DEFINE_ERROR(ResourceExhausted)
CAIRN_DEFINE_ERROR(PermissionDenied)
CAIRN_DEFINE_ERROR(Cancelled)
CAIRN_DEFINE_ERROR(Unimplemented)
CAIRN_DEFINE_ERROR(Internal)
#undef CAIRN_DEFINE_ERROR

namespace internal {
void ThrowBadResultAccess(const Status& status) {
  throw std::logic_error("value of a failed Result read: " + status.ToString());
}
}  // namespace internal

}  // namespace cairn
