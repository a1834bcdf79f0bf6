# cairn_warnings(<target>): the one place that says which warnings our own code is compiled with. They are errors
# unless CAIRN_WERROR is off (for packagers with another compiler).
include_guard(GLOBAL)
option(CAIRN_WERROR "Treat warnings in Cairn's own code as errors" ON)

function(cairn_warnings target)
  target_compile_options(
    ${target}
    PRIVATE
      $<$<BOOL:${CAIRN_WERROR}>:-Werror>
      -Wall
      -Wextra
      -Wnon-virtual-dtor
      -Woverloaded-virtual
      -Wimplicit-fallthrough
      -Wno-missing-field-initializers # Options are designated initialisers that name only what differs.
      # g++ 12 at -O3 warns of overlaps and of uninitialised members, in std::string and std::optional, that do not exist
      # (gcc bug 105651 and its like). Clang and valgrind look for the real ones.
      $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
      # libstdc++ 12's own std::stable_sort uses what it deprecates; clang reports it where we call it.
      $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
      $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
endfunction()
