# CAIRN_SANITIZE (set by the presets asan, tsan, fuzz) applies to every target of the tree. CAIRN_SANITIZER_ENV is the
# environment its tests run with: the first finding ends the test, and suppressions name third-party libraries only.
include_guard(GLOBAL)
set(CAIRN_SANITIZER_ENV)
set(CAIRN_TEST_TIMEOUT_FACTOR 1)
if(CAIRN_SANITIZE)
  add_compile_options(-fsanitize=${CAIRN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CAIRN_SANITIZE} -fno-sanitize-recover=all)
  set(CAIRN_TEST_TIMEOUT_FACTOR 10)
  set(suppressions ${CMAKE_CURRENT_LIST_DIR}/sanitizers)
  set(CAIRN_SANITIZER_ENV
      "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
      "LSAN_OPTIONS=suppressions=${suppressions}/leak.txt:print_suppressions=0"
      "UBSAN_OPTIONS=print_stacktrace=1:suppressions=${suppressions}/undefined.txt"
      # OpenVINO's TBB loads libraries with RTLD_DEEPBIND, which no sanitizer stands, unless it is told.
      "TBB_ENABLE_SANITIZERS=1"
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${suppressions}/thread.txt")
endif()
if(CAIRN_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "CAIRN_FUZZERS needs clang: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
