#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

enum class Code : std::uint8_t {
  kOk = 0,
  kNotFound,
  kAlreadyExists,
  kCorruption,          // bytes that are not what was written
  kInvalidArgument,     // the caller's input is wrong; nothing was done
  kFailedPrecondition,  // also: owned by another job
  kUnavailable,         // cannot be reached or is in use now; may work later
  kDeadlineExceeded,    // gave up waiting; the outcome may be unknown
  kAborted,             // fenced: another writer took over
  kResourceExhausted,   // no space, no memory, over a limit
  kPermissionDenied,
  kCancelled,
  kUnimplemented,
  kInternal,
};

std::string_view CodeName(Code code);

/// What kFailedPrecondition means where callers treat the cases differently.
enum class Reason : std::uint8_t {
  kNone = 0,
  kOwnedByAnotherJob,
  kMismatch,  // what is stored and what was asked for differ in names, dtypes or shapes
};

/// The outcome of an operation: OK, or a code with a message that names the thing and the remedy.
/// Cheap to move; an OK status holds no memory. A value type: distinct objects may be used from
/// different threads.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, Reason reason = Reason::kNone);

  static Status Ok() { return {}; }

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ == nullptr ? Code::kOk : rep_->code; }
  Reason reason() const { return rep_ == nullptr ? Reason::kNone : rep_->reason; }
  std::string_view message() const {
    return rep_ == nullptr ? std::string_view() : std::string_view(rep_->message);
  }
  /// "Corruption: restore step 40: …", or "OK".
  std::string ToString() const;

  /// Puts `context` and ": " before the message on the way up; OK stays OK.
  Status WithContext(std::string_view context) const&;
  Status WithContext(std::string_view context) &&;

  /// Drops the status on purpose; `why` is for the reader of the code.
  void IgnoreError(std::string_view why) const { (void)why; }

  bool Is(Code code) const { return this->code() == code; }

 private:
  struct Rep {
    Code code;
    Reason reason;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;  // shared: statuses are copied into several waiters' hands
};

Status NotFoundError(std::string message);
Status AlreadyExistsError(std::string message);
Status CorruptionError(std::string message);
Status InvalidArgumentError(std::string message);
Status FailedPreconditionError(std::string message);
Status OwnedByAnotherJobError(std::string message);
Status MismatchError(std::string message);
Status UnavailableError(std::string message);
Status DeadlineExceededError(std::string message);
Status AbortedError(std::string message);
Status ResourceExhaustedError(std::string message);
Status PermissionDeniedError(std::string message);
Status CancelledError(std::string message);
Status UnimplementedError(std::string message);
Status InternalError(std::string message);

/// A value or the status that says why there is none. Reading the value of a failed result is a
/// programming error and throws std::logic_error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    if (status_.ok()) status_ = InternalError("a Result was made from an OK status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return *Checked(); }
  const T& value() const& { return *const_cast<Result*>(this)->Checked(); }
  // By value: `for (auto& x : f().value())` must not walk through a dead temporary.
  T value() && { return std::move(*Checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T>& Checked();

  Status status_;
  std::optional<T> value_;
};

namespace internal {
[[noreturn]] void ThrowBadResultAccess(const Status& status);
}  // namespace internal

template <typename T>
std::optional<T>& Result<T>::Checked() {
  if (!value_.has_value()) internal::ThrowBadResultAccess(status_);
  return value_;
}

}  // namespace cairn
