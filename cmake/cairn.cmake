# Conventions of the build. A folder's CMakeLists.txt is a few calls of these functions and nothing else.
#
#   cairn_library(<name> SRCS a.cc b.cc [DEPS cairn::base cairn_dep::fmt ...] [TESTONLY] [ARCHIVE name])
#       Static library `cairn_<name>`, alias `cairn::<name>`. <name> is the folder (base, storage, ...) or
#       <folder>_<part> when a folder needs more than one. Headers are found from the repository's src/ and include/:
#       write "base/clock.h" and <cairn/status.h>. DEPS are public: whoever links this gets them too. Our libraries are
#       cairn::<name>; third-party ones cairn_dep::{threads uring xxhash isal zstd fmt spdlog json simdjson curl crypto ssl
#       cli11 gtest gmock benchmark}. Without SRCS it is a header-only (interface) library.
#       Everything not TESTONLY becomes part of the installed libcairn.a (target cairn::cairn). TESTONLY is for
#       conformance suites and fakes: they exist only where tests do (guard their use with if(CAIRN_TESTS)).
#       ARCHIVE: part of libcairn_<name>.a (target cairn::<name>) instead, for what not every user wants to link.
#
#   cairn_plugin(<name> SRCS ... [DEPS ...])
#       A shared object lib/cairn/libcairn_<name>.so that is loaded at run time (dlopen), target cairn_<name>; in a build
#       tree it lies beside the programs.
#
#   cairn_executable(<name> SRCS ... [DEPS ...] [OUTPUT file-name] [INSTALL])
#       A program in <build>/bin. INSTALL puts it into the installation's bin/.
#
#   cairn_test(<name> SRCS x_test.cc ... [DEPS ...] [LABELS unit|integration|crash|e2e|remote] [TIMEOUT seconds]
#              [ARGS ...] [NEEDS target ...] [WRAPPER program] [SERIAL] [NO_GTEST_MAIN])
#       One GoogleTest program = one ctest test, named <name>. Label unit and 300 s unless told: syncs of a busy disk take long. Runs with the
#       repository's root as working directory (golden files are opened as tests/compat/...). NEEDS names programs that
#       must be built beside it; they lie in the same bin/ directory, which is in the environment as CAIRN_BIN_DIR.
#       WRAPPER: a program that runs the test, which it is given as arguments. SERIAL: nothing else runs meanwhile. NO_GTEST_MAIN: the sources bring their own main. No-op when CAIRN_TESTS is off.
#       remote: the engine on real stores of other machines, an integration that the sanitizers see too.
#       `ninja tests_<label>` builds all tests of a label.
#
#   cairn_fuzz(<name> SRCS x_fuzz.cc [DEPS ...])
#       A fuzz target `fuzz_<name>` with LLVMFuzzerTestOneInput; seeds and past findings in fuzz/corpus/<name>/.
#       Preset fuzz: a libFuzzer program. Elsewhere: the same sources with a main that replays the corpus, as a unit test.
#
#   cairn_torture(<suite> COMMAND <target or program> args...)
#       A long random suite for `make torture`, written to <build>/torture.list. It is run with CAIRN_TORTURE_SECONDS
#       (how long) and CAIRN_TORTURE_STATE (a JSON file of its own: recorded seeds and accumulated counts).
#
#   cairn_benchmark(<name> SRCS ... [DEPS ...])
#       A program in <build>/bin; links nothing by itself.
#
# A folder is built when its CMakeLists.txt exists and, for src/, its name is in src/LAYERS.
include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/warnings.cmake)

set(CAIRN_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})

# What all of our own targets share.
function(_cairn_target target)
  cairn_warnings(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(_cairn_require_known prefix)
  if(${prefix}_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${CMAKE_CURRENT_FUNCTION}: not understood: ${${prefix}_UNPARSED_ARGUMENTS}")
  endif()
endfunction()

function(cairn_library name)
  cmake_parse_arguments(PARSE_ARGV 1 A "TESTONLY" "ARCHIVE" "SRCS;DEPS")
  _cairn_require_known(A)
  if(A_TESTONLY AND NOT CAIRN_TESTS)
    return()
  endif()
  set(target cairn_${name})
  if(A_SRCS)
    add_library(${target} STATIC ${A_SRCS})
    set(scope PUBLIC)
    _cairn_target(${target})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(cairn::${name} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} ${scope} ${A_DEPS})
  if(A_ARCHIVE)
    set_property(GLOBAL APPEND PROPERTY CAIRN_ARCHIVES ${A_ARCHIVE})
    set_property(GLOBAL APPEND PROPERTY CAIRN_ARCHIVE_${A_ARCHIVE}_COMPONENTS ${target})
    set_property(GLOBAL APPEND PROPERTY CAIRN_ARCHIVE_${A_ARCHIVE}_DEPS ${A_DEPS})
  elseif(NOT A_TESTONLY)
    if(A_SRCS)
      set_property(GLOBAL APPEND PROPERTY CAIRN_COMPONENTS ${target})
    endif()
    set_property(GLOBAL APPEND PROPERTY CAIRN_COMPONENT_DEPS ${A_DEPS})
  endif()
endfunction()

function(cairn_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "SRCS;DEPS")
  _cairn_require_known(A)
  add_library(cairn_${name} MODULE ${A_SRCS})
  _cairn_program(cairn_${name})
  set_target_properties(cairn_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_libraries(cairn_${name} PRIVATE ${A_DEPS})
  # What it is linked with statically is its own affair.
  target_link_options(cairn_${name} PRIVATE -Wl,--exclude-libs,ALL)
endfunction()

function(_cairn_program target)
  _cairn_target(${target})
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
                                               ${PROJECT_SOURCE_DIR})
endfunction()

function(cairn_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 A "INSTALL" "OUTPUT" "SRCS;DEPS")
  _cairn_require_known(A)
  add_executable(${name} ${A_SRCS})
  _cairn_program(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
  if(A_OUTPUT)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${A_OUTPUT})
  endif()
  if(A_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

function(cairn_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "SRCS;DEPS")
  _cairn_require_known(A)
  cairn_executable(${name} SRCS ${A_SRCS} DEPS ${A_DEPS})
endfunction()

# `ninja tests_<label>` exists for every label, also while no test has it.
function(_cairn_test_groups)
  foreach(label unit integration crash e2e remote slurm ray)
    add_custom_target(tests_${label})
  endforeach()
endfunction()

function(cairn_test name)
  cmake_parse_arguments(PARSE_ARGV 1 A "SERIAL;NO_GTEST_MAIN" "TIMEOUT;WRAPPER" "SRCS;DEPS;LABELS;ARGS;NEEDS")
  _cairn_require_known(A)
  if(NOT CAIRN_TESTS)
    return()
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  # Sanitizers slow code down several times; a time limit is there to end a hang, not to measure.
  math(EXPR A_TIMEOUT "${A_TIMEOUT} * ${CAIRN_TEST_TIMEOUT_FACTOR}")
  add_executable(${name} ${A_SRCS})
  _cairn_program(${name})
  # Expectations are compiled once and run once: optimising them costs minutes and gains nothing. Under clang's sanitizers -O1
  # takes two to four times as long as -O0.
  if(CAIRN_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  else()
    target_compile_options(${name} PRIVATE -O1)
  endif()
  target_link_libraries(${name} PRIVATE ${A_DEPS} cairn_dep::gmock)
  if(NOT A_NO_GTEST_MAIN)
    target_link_libraries(${name} PRIVATE cairn_dep::gtest_main)
  endif()
  if(A_NEEDS)
    add_dependencies(${name} ${A_NEEDS})
  endif()
  set(environment "CAIRN_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};${CAIRN_SANITIZER_ENV}")
  if(crash IN_LIST A_LABELS)
    # Crash suites open and close the engine a hundred thousand times: its buffers go back to the heap, not to the kernel,
    # which takes a third of the time otherwise.
    list(APPEND environment MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=67108864)
  endif()
  add_test(NAME ${name} COMMAND ${A_WRAPPER} $<TARGET_FILE:${name}> ${A_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${environment}")
  if(A_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  foreach(label ${A_LABELS})
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

function(cairn_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "SRCS;DEPS")
  _cairn_require_known(A)
  set(target fuzz_${name})
  set(corpus ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
  if(CAIRN_FUZZERS)
    add_executable(${target} ${A_SRCS})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    add_dependencies(cairn_fuzzers ${target})
    set_property(GLOBAL APPEND PROPERTY CAIRN_FUZZ_LINES "${name}\t$<TARGET_FILE:${target}>\t${corpus}")
  elseif(CAIRN_TESTS)
    add_executable(${target} ${A_SRCS} ${CAIRN_CMAKE_DIR}/fuzz_replay_main.cc)
    add_dependencies(tests_unit ${target})
    add_test(NAME ${target} COMMAND ${target} ${corpus})
    set_tests_properties(${target} PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT "${CAIRN_SANITIZER_ENV}")
  else()
    return()
  endif()
  _cairn_program(${target})
  target_link_libraries(${target} PRIVATE ${A_DEPS})
endfunction()

function(cairn_torture suite)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "COMMAND")
  _cairn_require_known(A)
  if(NOT CAIRN_TESTS)
    return()
  endif()
  list(POP_FRONT A_COMMAND program)
  if(TARGET ${program})
    set(program $<TARGET_FILE:${program}>)
  endif()
  list(JOIN A_COMMAND " " arguments)
  set_property(GLOBAL APPEND PROPERTY CAIRN_TORTURE_LINES "${suite}\t${program} ${arguments}")
endfunction()

# Called once, after all folders: the lists that scripts read, and the public library.
function(cairn_finish)
  foreach(kind FUZZ TORTURE)
    get_property(lines GLOBAL PROPERTY CAIRN_${kind}_LINES)
    string(TOLOWER ${kind} file)
    list(JOIN lines "\n" text)
    if(text)
      string(APPEND text "\n")
    endif()
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${file}.list CONTENT "${text}")
  endforeach()
endfunction()

# The public library: one archive of the objects of all components, so that a user links one file and the components
# may be cut anew without anybody noticing.
function(cairn_public_library)
  get_property(components GLOBAL PROPERTY CAIRN_COMPONENTS)
  get_property(deps GLOBAL PROPERTY CAIRN_COMPONENT_DEPS)
  if(NOT components)
    return()
  endif()
  set(objects)
  foreach(component ${components})
    list(APPEND objects $<TARGET_OBJECTS:${component}>)
  endforeach()
  list(REMOVE_DUPLICATES deps)
  list(FILTER deps EXCLUDE REGEX "^cairn(::|_[a-z]+$)")
  add_library(cairn_public STATIC ${objects})
  add_library(cairn::cairn ALIAS cairn_public)
  set_target_properties(cairn_public PROPERTIES OUTPUT_NAME cairn EXPORT_NAME cairn LINKER_LANGUAGE CXX)
  target_compile_features(cairn_public PUBLIC cxx_std_20)
  target_include_directories(cairn_public INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(cairn_public PRIVATE ${deps} cairn_dep::threads)
  _cairn_extra_archives()
endfunction()

# Beside it, an archive for each ARCHIVE that components named; it links the public library.
function(_cairn_extra_archives)
  get_property(archives GLOBAL PROPERTY CAIRN_ARCHIVES)
  list(REMOVE_DUPLICATES archives)
  foreach(archive ${archives})
    get_property(components GLOBAL PROPERTY CAIRN_ARCHIVE_${archive}_COMPONENTS)
    get_property(deps GLOBAL PROPERTY CAIRN_ARCHIVE_${archive}_DEPS)
    set(objects)
    foreach(component ${components})
      list(APPEND objects $<TARGET_OBJECTS:${component}>)
    endforeach()
    list(REMOVE_DUPLICATES deps)
    list(FILTER deps EXCLUDE REGEX "^cairn(::|_[a-z]+$)")
    add_library(cairn_public_${archive} STATIC ${objects})
    add_library(cairn::${archive} ALIAS cairn_public_${archive})
    set_target_properties(cairn_public_${archive} PROPERTIES OUTPUT_NAME cairn_${archive} EXPORT_NAME ${archive}
                                                             LINKER_LANGUAGE CXX)
    target_link_libraries(cairn_public_${archive} PUBLIC cairn_public PRIVATE ${deps})
  endforeach()
endfunction()
