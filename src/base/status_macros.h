#pragma once

#include <cairn/status.h>

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)

/// Leaves the function with the status when it is not OK.
#define RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                  \
    if (::cairn::Status cairn_status = (expr); !cairn_status.ok()) return cairn_status; \
  } while (false)

/// `lhs` becomes the result's value, or the function is left with its status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(CAIRN_CONCAT(cairn_result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                          \
  if (!result.ok()) return result.status();      \
  lhs = std::move(result).value()
