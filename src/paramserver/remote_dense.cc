#include "paramserver/remote_dense.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/declaration.h"
#include "paramserver/payload.h"

namespace cairn::ps {

template <typename Fn>
void RemoteDenseImpl::ForBlocks(int server, const Fn& fn) const {
  for (const DenseBlock& block : BlocksOf(spec_.name, shape_, server, client_->servers())) {
    fn(block.first * shape_.width, block.count * shape_.width);
  }
}

std::size_t RemoteDenseImpl::ElementsAt(int server) const {
  std::size_t elements = 0;
  ForBlocks(server, [&](std::uint64_t, std::uint64_t count) { elements += count; });
  return elements;
}

Status RemoteDenseImpl::Declare() {
  const std::string description = EncodeJson(ToValue(spec_));
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(client_->servers()));
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kDeclareDense}, false,
      [&](int i, const RequestHead& head) {
        std::span<std::byte> into;
        rpc::Message message = NewDenseDeclaration(head, description, ElementsAt(i), &into);
        std::byte* at = into.data();
        ForBlocks(i, [&](std::uint64_t offset, std::uint64_t count) {
          std::memcpy(at, initial_.data() + offset, count * sizeof(float));
          at += count * sizeof(float);
        });
        return std::optional(std::move(message));
      },
      [&](int i, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const std::uint64_t id, DecodeNumber(body));
        ids[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(id);
        return Status::Ok();
      }));
  ids_ = std::move(ids);
  return Status::Ok();
}

Status RemoteDenseImpl::Pull(std::span<float> out) {
  if (out.size() != shape_.elements()) {
    return InvalidArgumentError(fmt::format("dense variable \"{}\" has {} elements, not {}",
                                            spec_.name, shape_.elements(), out.size()));
  }
  return client_->Exchange(
      {.kind = Kind::kDensePull}, false,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        if (ElementsAt(i) == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        return NewRequest(head, "");
      },
      [&](int i, std::span<const std::byte> body) {
        if (body.size() != ElementsAt(i) * sizeof(float)) {
          return CorruptionError("an answer with another number of elements");
        }
        const std::byte* at = body.data();
        ForBlocks(i, [&](std::uint64_t offset, std::uint64_t count) {
          std::memcpy(out.data() + offset, at, count * sizeof(float));
          at += count * sizeof(float);
        });
        return Status::Ok();
      });
}

Status RemoteDenseImpl::Push(std::span<const float> gradient) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  if (gradient.size() != shape_.elements()) {
    return InvalidArgumentError(fmt::format("dense variable \"{}\" has {} elements, not {}",
                                            spec_.name, shape_.elements(), gradient.size()));
  }
  return client_->Exchange(
      {.kind = Kind::kDensePush}, true,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        if (ElementsAt(i) == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        rpc::Message message = NewRequest(head, ElementsAt(i) * sizeof(float));
        std::byte* at = Body(&message).data();
        ForBlocks(i, [&](std::uint64_t offset, std::uint64_t count) {
          std::memcpy(at, gradient.data() + offset, count * sizeof(float));
          at += count * sizeof(float);
        });
        return message;
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); });
}

Status RemoteDenseImpl::Export(std::size_t slot_width, std::vector<float>* values,
                               std::vector<float>* slots) {
  values->assign(shape_.elements(), 0);
  slots->assign(shape_.rows * slot_width, 0);
  return client_->Exchange(
      {.kind = Kind::kDenseExport}, false,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        if (ElementsAt(i) == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        return NewRequest(head, "");
      },
      [&](int i, std::span<const std::byte> body) {
        const std::size_t rows = ElementsAt(i) / shape_.width;
        if (body.size() != rows * (shape_.width + slot_width) * sizeof(float)) {
          return CorruptionError("an answer with another number of elements");
        }
        const std::byte* at = body.data();
        ForBlocks(i, [&](std::uint64_t offset, std::uint64_t count) {
          std::memcpy(values->data() + offset, at, count * sizeof(float));
          at += count * sizeof(float);
        });
        ForBlocks(i, [&](std::uint64_t offset, std::uint64_t count) {
          const std::size_t floats = count / shape_.width * slot_width;
          if (floats == 0) return;
          std::memcpy(slots->data() + offset / shape_.width * slot_width, at,
                      floats * sizeof(float));
          at += floats * sizeof(float);
        });
        return Status::Ok();
      });
}

}  // namespace cairn::ps
