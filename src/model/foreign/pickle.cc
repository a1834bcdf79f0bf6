#include "model/foreign/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

// An opcode makes at most one value, so the input bounds the memory; this bounds the factor.
constexpr std::size_t kMaxValues = 50'000'000;

Status Damaged(std::string_view what) { return CorruptionError(fmt::format("pickle: {}", what)); }

}  // namespace

std::span<const PickleValue* const> PickleValue::Sequence() const {
  if (kind == Kind::kList || kind == Kind::kTuple) return items;
  return {};
}

/// The stack machine. One use.
class PickleDecoder {
 public:
  PickleDecoder(std::span<const std::byte> bytes, bool (*allowed)(std::string_view))
      : bytes_(bytes), allowed_(allowed) {}

  Result<Pickle> Run() {
    for (;;) {
      std::uint8_t opcode = 0;
      RETURN_IF_ERROR(Number(&opcode));
      if (opcode == '.') break;
      RETURN_IF_ERROR(Step(static_cast<char>(opcode)));
      if (out_.values_.size() > kMaxValues) {
        return ResourceExhaustedError("pickle: it has too many values");
      }
    }
    RETURN_IF_ERROR(Pop(&out_.root_));
    out_.size_ = at_;
    return std::move(out_);
  }

 private:
  using Kind = PickleValue::Kind;

  Status Step(char opcode) {
    bool known = true;
    RETURN_IF_ERROR(Scalar(opcode, &known));
    if (known) return Status::Ok();
    known = true;
    RETURN_IF_ERROR(Container(opcode, &known));
    if (known) return Status::Ok();
    known = true;
    RETURN_IF_ERROR(Memo(opcode, &known));
    if (known) return Status::Ok();
    return Object(opcode);
  }

  // --- input

  template <typename T>
  Status Number(T* out) {
    if (bytes_.size() - at_ < sizeof(T)) return Damaged("it ends too early");
    std::memcpy(out, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return Status::Ok();
  }
  Status Take(std::uint64_t size, std::span<const std::byte>* out) {
    if (size > bytes_.size() - at_) return Damaged("it ends within a value");
    *out = bytes_.subspan(at_, size);
    at_ += size;
    return Status::Ok();
  }
  template <typename Size>
  Status TakeSized(std::span<const std::byte>* out) {
    Size size = 0;
    RETURN_IF_ERROR(Number(&size));
    return Take(size, out);
  }
  Status Line(std::string_view* out) {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                                bytes_.size() - at_);
    const std::size_t end = rest.find('\n');
    if (end == rest.npos) return Damaged("a line does not end");
    *out = rest.substr(0, end);
    at_ += end + 1;
    return Status::Ok();
  }

  // --- stack

  PickleValue* Push(Kind kind) {
    PickleValue& value = out_.values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return &value;
  }
  void PushInteger(std::int64_t value, Kind kind = Kind::kInt) { Push(kind)->integer = value; }
  Status PushText(std::span<const std::byte> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!IsValidUtf8(text)) return Damaged("a text is not UTF-8");
    Push(Kind::kText)->text = text;
    return Status::Ok();
  }
  Status Pop(const PickleValue** out) {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
      return Damaged("a value is missing");
    }
    *out = stack_.back();
    stack_.pop_back();
    return Status::Ok();
  }
  /// The values above the newest mark.
  Status PopMark(std::vector<const PickleValue*>* out) {
    if (marks_.empty()) return Damaged("a mark is missing");
    out->assign(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return Status::Ok();
  }
  Status Top(PickleValue** out) {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
      return Damaged("a value is missing");
    }
    *out = stack_.back();
    return Status::Ok();
  }

  // --- opcodes

  Status Scalar(char opcode, bool* known) {
    std::span<const std::byte> bytes;
    switch (opcode) {
      case 'N':
        Push(Kind::kNone);
        return Status::Ok();
      case '\x88':
      case '\x89':
        PushInteger(opcode == '\x88' ? 1 : 0, Kind::kBool);
        return Status::Ok();
      case 'J':
        return Integer<std::int32_t>();
      case 'K':
        return Integer<std::uint8_t>();
      case 'M':
        return Integer<std::uint16_t>();
      case '\x8a':
        RETURN_IF_ERROR(TakeSized<std::uint8_t>(&bytes));
        return Long(bytes);
      case '\x8b':
        RETURN_IF_ERROR(TakeSized<std::uint32_t>(&bytes));
        return Long(bytes);
      case 'I':
      case 'L':
        return TextInteger();
      case 'G':
        return BigEndianFloat();
      case 'U':
        RETURN_IF_ERROR(TakeSized<std::uint8_t>(&bytes));
        return PushBytes(bytes);
      case 'T':
        RETURN_IF_ERROR(TakeSized<std::uint32_t>(&bytes));
        return PushBytes(bytes);
      case 'C':
        RETURN_IF_ERROR(TakeSized<std::uint8_t>(&bytes));
        return PushBytes(bytes);
      case 'B':
        RETURN_IF_ERROR(TakeSized<std::uint32_t>(&bytes));
        return PushBytes(bytes);
      case '\x8e':
      case '\x96':
        RETURN_IF_ERROR(TakeSized<std::uint64_t>(&bytes));
        return PushBytes(bytes);
      case '\x8c':
        RETURN_IF_ERROR(TakeSized<std::uint8_t>(&bytes));
        return PushText(bytes);
      case 'X':
        RETURN_IF_ERROR(TakeSized<std::uint32_t>(&bytes));
        return PushText(bytes);
      case '\x8d':
        RETURN_IF_ERROR(TakeSized<std::uint64_t>(&bytes));
        return PushText(bytes);
      default:
        *known = false;
        return Status::Ok();
    }
  }

  template <typename T>
  Status Integer() {
    T value = 0;
    RETURN_IF_ERROR(Number(&value));
    PushInteger(value);
    return Status::Ok();
  }
  Status PushBytes(std::span<const std::byte> bytes) {
    Push(Kind::kBytes)->bytes = bytes;
    return Status::Ok();
  }
  Status Long(std::span<const std::byte> bytes) {
    if (bytes.size() > 8) {
      Push(Kind::kHuge);
      return Status::Ok();
    }
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    if (!bytes.empty() && bytes.size() < 8 && (bytes.back() & std::byte{0x80}) != std::byte{0}) {
      value |= ~std::uint64_t{0} << (8 * bytes.size());
    }
    PushInteger(static_cast<std::int64_t>(value));
    return Status::Ok();
  }
  Status TextInteger() {
    std::string_view line;
    RETURN_IF_ERROR(Line(&line));
    if (line == "00" || line == "01") {
      PushInteger(line[1] - '0', Kind::kBool);
      return Status::Ok();
    }
    if (line.ends_with('L')) line.remove_suffix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc() || end != line.data() + line.size()) {
      return Damaged("an integer is none");
    }
    PushInteger(value);
    return Status::Ok();
  }
  Status BigEndianFloat() {
    std::uint64_t bits = 0;
    RETURN_IF_ERROR(Number(&bits));
    Push(Kind::kFloat)->number = std::bit_cast<double>(__builtin_bswap64(bits));
    return Status::Ok();
  }

  Status Container(char opcode, bool* known) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return Status::Ok();
      case ')':
        Push(Kind::kTuple);
        return Status::Ok();
      case ']':
        Push(Kind::kList);
        return Status::Ok();
      case '}':
        Push(Kind::kDict);
        return Status::Ok();
      case '\x8f':
        Push(Kind::kSet);
        return Status::Ok();
      case 't':
        return Gather(Kind::kTuple);
      case 'l':
        return Gather(Kind::kList);
      case 'd':
        return Gather(Kind::kDict);
      case '\x91':
        return Gather(Kind::kSet);
      case '\x85':
      case '\x86':
      case '\x87':
        return ShortTuple(static_cast<std::size_t>(static_cast<unsigned char>(opcode)) - 0x84);
      case 'a':
        return Append(1);
      case 's':
        return Append(2);
      case 'e':
      case '\x90':
        return Extend(Kind::kList);
      case 'u':
        return Extend(Kind::kDict);
      default:
        *known = false;
        return Status::Ok();
    }
  }

  Status Gather(Kind kind) {
    std::vector<const PickleValue*> items;
    RETURN_IF_ERROR(PopMark(&items));
    if (kind == Kind::kDict && items.size() % 2 != 0) return Damaged("a key has no value");
    Push(kind)->items = std::move(items);
    return Status::Ok();
  }
  Status ShortTuple(std::size_t count) {
    std::vector<const PickleValue*> items(count);
    for (std::size_t i = count; i-- > 0;) RETURN_IF_ERROR(Pop(&items[i]));
    Push(Kind::kTuple)->items = std::move(items);
    return Status::Ok();
  }
  /// One item of a list, or key and value of a dict.
  Status Append(std::size_t count) {
    std::vector<const PickleValue*> items(count);
    for (std::size_t i = count; i-- > 0;) RETURN_IF_ERROR(Pop(&items[i]));
    return Add(items, count == 2);
  }
  Status Extend(Kind kind) {
    std::vector<const PickleValue*> items;
    RETURN_IF_ERROR(PopMark(&items));
    return Add(items, kind == Kind::kDict);
  }
  Status Add(const std::vector<const PickleValue*>& items, bool pairs) {
    PickleValue* to = nullptr;
    RETURN_IF_ERROR(Top(&to));
    const bool fits = pairs ? to->kind == Kind::kDict || to->kind == Kind::kCall
                            : to->kind == Kind::kList || to->kind == Kind::kSet;
    if (!fits) return Damaged("something that is no container is given items");
    if (pairs && items.size() % 2 != 0) return Damaged("a key has no value");
    to->items.insert(to->items.end(), items.begin(), items.end());
    return Status::Ok();
  }

  Status Memo(char opcode, bool* known) {
    std::uint64_t slot = 0;
    switch (opcode) {
      case 'h':
        RETURN_IF_ERROR(Slot<std::uint8_t>(&slot));
        return Get(slot);
      case 'j':
        RETURN_IF_ERROR(Slot<std::uint32_t>(&slot));
        return Get(slot);
      case 'g':
        RETURN_IF_ERROR(TextSlot(&slot));
        return Get(slot);
      case 'q':
        RETURN_IF_ERROR(Slot<std::uint8_t>(&slot));
        return Put(slot);
      case 'r':
        RETURN_IF_ERROR(Slot<std::uint32_t>(&slot));
        return Put(slot);
      case 'p':
        RETURN_IF_ERROR(TextSlot(&slot));
        return Put(slot);
      case '\x94':
        return Put(memo_.size());
      default:
        *known = false;
        return Status::Ok();
    }
  }
  template <typename T>
  Status Slot(std::uint64_t* out) {
    T slot = 0;
    RETURN_IF_ERROR(Number(&slot));
    *out = slot;
    return Status::Ok();
  }
  Status TextSlot(std::uint64_t* out) {
    std::string_view line;
    RETURN_IF_ERROR(Line(&line));
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), *out);
    if (error != std::errc() || end != line.data() + line.size()) return Damaged("a bad slot");
    return Status::Ok();
  }
  Status Get(std::uint64_t slot) {
    const auto it = memo_.find(slot);
    if (it == memo_.end()) return Damaged("it refers to a value that was not kept");
    stack_.push_back(it->second);
    return Status::Ok();
  }
  Status Put(std::uint64_t slot) {
    PickleValue* value = nullptr;
    RETURN_IF_ERROR(Top(&value));
    memo_[slot] = value;
    return Status::Ok();
  }

  Status Object(char opcode) {
    switch (opcode) {
      case '\x80': {  // PROTO
        std::uint8_t protocol = 0;
        RETURN_IF_ERROR(Number(&protocol));
        if (protocol <= 5) return Status::Ok();
        return UnimplementedError(fmt::format("pickle: protocol {}", protocol));
      }
      case '\x95': {  // FRAME
        std::uint64_t bytes = 0;
        return Number(&bytes);
      }
      case '0':
      case '2':
      case '1':
        return Stack(opcode);
      case 'c':
        return GlobalByLines();
      case '\x93':
        return GlobalFromStack();
      case 'R':
      case '\x81':  // NEWOBJ: a call too, as far as we care
        return Reduce();
      case 'b':
        return Build();
      case 'Q':
        return Persistent();
      default:
        // Among these: INST, OBJ and the extension registry, which are of no use for arrays.
        return InvalidArgumentError(
            fmt::format("pickle: the opcode 0x{:02x} at byte {} has no business in a file of "
                        "tensors; refused",
                        static_cast<unsigned char>(opcode), at_ - 1));
    }
  }
  Status Stack(char opcode) {
    if (opcode == '1') {
      std::vector<const PickleValue*> dropped;
      return PopMark(&dropped);
    }
    PickleValue* top = nullptr;
    RETURN_IF_ERROR(Top(&top));
    if (opcode == '2') {
      stack_.push_back(top);
    } else {
      stack_.pop_back();
    }
    return Status::Ok();
  }
  Status PushGlobal(std::string_view module, std::string_view name) {
    std::string& full = out_.texts_.emplace_back(module);
    full += '.';
    full += name;
    if (!allowed_(full)) {
      return InvalidArgumentError("pickle: it names " + QuoteForMessage(full) +
                                  ", which is no constructor of arrays; refused, nothing was run");
    }
    Push(Kind::kGlobal)->text = full;
    return Status::Ok();
  }
  Status GlobalByLines() {
    std::string_view module;
    std::string_view name;
    RETURN_IF_ERROR(Line(&module));
    RETURN_IF_ERROR(Line(&name));
    return PushGlobal(module, name);
  }
  Status GlobalFromStack() {
    const PickleValue* name = nullptr;
    const PickleValue* module = nullptr;
    RETURN_IF_ERROR(Pop(&name));
    RETURN_IF_ERROR(Pop(&module));
    if (name->kind != Kind::kText || module->kind != Kind::kText) {
      return Damaged("a name is no text");
    }
    return PushGlobal(module->text, name->text);
  }
  Status Reduce() {
    const PickleValue* arguments = nullptr;
    const PickleValue* callee = nullptr;
    RETURN_IF_ERROR(Pop(&arguments));
    RETURN_IF_ERROR(Pop(&callee));
    if (arguments->kind != Kind::kTuple || callee->kind != Kind::kGlobal) {
      return Damaged("a call is none");
    }
    PickleValue* call = Push(Kind::kCall);
    call->callee = callee;
    call->arguments = arguments;
    return Status::Ok();
  }
  Status Build() {
    const PickleValue* state = nullptr;
    RETURN_IF_ERROR(Pop(&state));
    PickleValue* to = nullptr;
    RETURN_IF_ERROR(Top(&to));
    to->state = state;
    return Status::Ok();
  }
  Status Persistent() {
    const PickleValue* id = nullptr;
    RETURN_IF_ERROR(Pop(&id));
    Push(Kind::kPersistent)->arguments = id;
    return Status::Ok();
  }

  const std::span<const std::byte> bytes_;
  bool (*const allowed_)(std::string_view);
  std::size_t at_ = 0;
  Pickle out_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::map<std::uint64_t, PickleValue*> memo_;
};

Result<Pickle> DecodePickle(std::span<const std::byte> bytes, bool (*allowed)(std::string_view)) {
  return PickleDecoder(bytes, allowed).Run();
}

}  // namespace cairn
