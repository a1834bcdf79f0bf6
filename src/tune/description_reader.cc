#include "tune/description_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "format/json.h"

namespace cairn::tune {

DescriptionReader::DescriptionReader(std::string_view what, const Value& description)
    : what_(what), members_(description.if_object()) {
  if (members_ == nullptr)
    status_ = InvalidArgumentError(fmt::format("{}: must be an object", what_));
}

const Value* DescriptionReader::Take(std::string_view key) {
  asked_.emplace(key);
  if (members_ == nullptr) return nullptr;
  const auto it = members_->find(key);
  return it == members_->end() || it->second.is_null() ? nullptr : &it->second;
}

void DescriptionReader::Wrong(std::string_view key, std::string_view expected) {
  if (!status_.ok()) return;
  status_ =
      InvalidArgumentError(fmt::format("{}: {} must be {}, not {}", what_, key, expected,
                                       QuoteForMessage(EncodeJson(members_->find(key)->second))));
}

void DescriptionReader::Text(std::string_view key, std::string* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  if (const std::string* text = found->if_string()) {
    *out = *text;
  } else {
    Wrong(key, "a text");
  }
}

void DescriptionReader::Number(std::string_view key, double* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  if (found->is_number() && !std::isnan(found->AsDouble())) {
    *out = found->AsDouble();
  } else {
    Wrong(key, "a number");
  }
}

void DescriptionReader::Int64(std::string_view key, std::int64_t* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  if (const std::int64_t* number = found->if_int64()) {
    *out = *number;
  } else {
    Wrong(key, "an integer");
  }
}

void DescriptionReader::Int(std::string_view key, int* out) {
  std::int64_t wide = *out;
  Int64(key, &wide);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    Wrong(key, "a smaller integer");
  } else {
    *out = static_cast<int>(wide);
  }
}

void DescriptionReader::Uint64(std::string_view key, std::uint64_t* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  if (const auto* large = found->if_uint64()) {
    *out = *large;
  } else if (found->AsInt(-1) >= 0) {
    *out = static_cast<std::uint64_t>(found->AsInt());
  } else {
    Wrong(key, "an integer of at least 0");
  }
}

void DescriptionReader::Bool(std::string_view key, bool* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  if (const bool* truth = found->if_bool()) {
    *out = *truth;
  } else {
    Wrong(key, "true or false");
  }
}

void DescriptionReader::Numbers(std::string_view key, std::vector<double>* out) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  const Value::List* list = found->if_list();
  std::vector<double> numbers;
  for (const Value& item : list == nullptr ? Value::List{Value()} : *list) {
    if (!item.is_number()) return Wrong(key, "a list of numbers");
    numbers.push_back(item.AsDouble());
  }
  *out = std::move(numbers);
}

void DescriptionReader::Any(std::string_view key, Value* out) {
  if (const Value* found = Take(key)) *out = *found;
}

void DescriptionReader::Mode(std::string_view key, bool* maximize) {
  const Value* found = Take(key);
  if (found == nullptr) return;
  const std::string* text = found->if_string();
  if (text == nullptr || (*text != "min" && *text != "max")) return Wrong(key, "min or max");
  *maximize = *text == "max";
}

Status DescriptionReader::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : *members_) {
    if (!asked_.contains(key)) {
      return InvalidArgumentError(
          fmt::format("{}: no option is called {}", what_, QuoteForMessage(key)));
    }
  }
  return Status::Ok();
}

}  // namespace cairn::tune
