#pragma once

#include <string>
#include <vector>

namespace cairn {

/// For the message of a mismatch: a missing name that is stored behind a prefix, as a trainer's
/// checkpoint has "model/fc/w" for "fc/w", in parentheses; "" when there is none. Whether it can be
/// renamed depends on whom the user asked: the rest of the message says that.
/// `unexpected`: what is stored and was not asked for.
std::string StoredElsewhere(const std::vector<std::string>& missing,
                            const std::vector<std::string>& unexpected);

}  // namespace cairn
