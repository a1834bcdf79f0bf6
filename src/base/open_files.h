#pragma once

#include <cstddef>

namespace cairn {

/// Makes room for so many more descriptors in this process, as far as the hard limit lets it: the
/// soft one, often 1,024, is raised, and stays so. For those who are about to open many files.
void AllowOpenFiles(std::size_t more);

}  // namespace cairn
