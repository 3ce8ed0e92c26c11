# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# What they all include, parsed once. Not for g++, which takes longer to read this back than to parse what one test needs.
# That each header includes what it needs is tested in headers/.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(CMAKE_PCH_PROLOGUE "") # CMake would make system headers of them, which clang does not warn in
  add_library(pipelining.tests.precompiled OBJECT support/precompiled.cpp)
  target_link_libraries(pipelining.tests.precompiled PRIVATE pipelining_development doctest::doctest)
  target_compile_definitions(pipelining.tests.precompiled PRIVATE DOCTEST_CONFIG_VOID_CAST_EXPRESSIONS)
  target_compile_options(pipelining.tests.precompiled PRIVATE ${PIPELINING_UNIT_TEST_OPTIONS})
  target_compile_options(pipelining.tests.precompiled PRIVATE "SHELL:-Xclang -fno-pch-timestamp") # for ccache
  target_precompile_headers(pipelining.tests.precompiled PRIVATE <doctest/doctest.h> <pipe/pipe.hpp> <pipe/cluster.hpp>
    <pipe/planner.hpp> <pipe/view.hpp>)
endif()

# The lanes of scripts/test build each unit test once: PLAIN ones under sanitizers, OPTIMISED ones, and those with the label
# once or cuda, without.
set(PIPELINING_UNIT_TESTS ALL CACHE STRING "Which unit tests are built: ALL, PLAIN or OPTIMISED")
set_property(CACHE PIPELINING_UNIT_TESTS PROPERTY STRINGS ALL PLAIN OPTIMISED)

# pipelining_unit_tests(AREA SOURCES name... [APART name...] [SLOW name...] [SOME_THREADS name...] [LABELS label...] [LINK target...]
#   [TIMEOUT seconds] [OPTIMISED])
# One program per call (linking is slow, so an area is one program), one CTest test per name. Those of SLOW are left out
# by the preset `quick`. OPTIMISED is for those that run longer than that takes. Tests of an area make the same templates, so
# they are compiled eight at a time, in a third of the time; those of APART, whose names others have, are not. Of SOME_THREADS
# only the test suite `threads` runs under ThreadSanitizer; the other cases have one thread.
# Call it a second time with SUFFIX where some tests of an area need other labels or libraries.
function(pipelining_unit_tests area)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OPTIMISED" "SUFFIX;TIMEOUT" "SOURCES;APART;SLOW;SOME_THREADS;LABELS;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "pipelining_unit_tests(${area}): wants SOURCES and knows nothing of '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  set(kind PLAIN)
  if(arg_OPTIMISED OR "once" IN_LIST arg_LABELS OR "cuda" IN_LIST arg_LABELS)
    set(kind OPTIMISED)
  endif()
  if(NOT PIPELINING_UNIT_TESTS MATCHES "^(ALL|${kind})$")
    return()
  endif()
  set(target pipelining.tests.unit.${area})
  if(arg_SUFFIX)
    string(APPEND target ".${arg_SUFFIX}")
  endif()
  set(sources ${arg_SOURCES})
  list(TRANSFORM sources APPEND .test.cpp)
  add_executable(${target} ${sources} $<TARGET_OBJECTS:pipelining.tests.main>)
  target_link_libraries(${target} PRIVATE pipelining_development doctest::doctest ${arg_LINK})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  # CHECK_THROWS_AS and its family may call what is [[nodiscard]].
  target_compile_definitions(${target} PRIVATE DOCTEST_CONFIG_VOID_CAST_EXPRESSIONS)
  if(NOT arg_OPTIMISED)
    target_compile_options(${target} PRIVATE ${PIPELINING_UNIT_TEST_OPTIONS})
    if(TARGET pipelining.tests.precompiled)
      target_precompile_headers(${target} REUSE_FROM pipelining.tests.precompiled)
    endif()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  foreach(name IN LISTS arg_APART)
    set_source_files_properties(${name}.test.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
  add_dependencies(pipelining.tests.unit ${target})
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(pipelining.tests.threads ${target})
  endif()
  if("arm64" IN_LIST arg_LABELS)
    add_dependencies(pipelining.tests.arm64 ${target})
  endif()
  foreach(name IN LISTS arg_SOURCES)
    set(suite "")
    if(name IN_LIST arg_SOME_THREADS AND PIPELINING_SANITIZE MATCHES "thread")
      set(suite "--test-suite=threads")
    endif()
    add_test(NAME unit.${area}.${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}/tests"
      COMMAND ${PIPELINING_LAUNCHER} $<TARGET_FILE:${target}> "--source-file=*unit/${area}/${name}.test.cpp" ${suite})
    # A filter that matches nothing must not look like success.
    set_tests_properties(unit.${area}.${name} PROPERTIES
      LABELS "unit;${area};${arg_LABELS}" FAIL_REGULAR_EXPRESSION "test cases: +0 ")
    if(name IN_LIST arg_SLOW)
      set_property(TEST unit.${area}.${name} APPEND PROPERTY LABELS slow)
    endif()
    if(arg_TIMEOUT)
      set_tests_properties(unit.${area}.${name} PROPERTIES TIMEOUT ${arg_TIMEOUT})
    endif()
  endforeach()
endfunction()

# pipelining_static_tests(AREA name...): static_assert only, no main; that it compiles is the test.
function(pipelining_static_tests area)
  set(sources ${ARGN})
  list(TRANSFORM sources APPEND .static.cpp)
  add_library(pipelining.tests.static.${area} OBJECT ${sources})
  target_link_libraries(pipelining.tests.static.${area} PRIVATE pipelining_development)
  target_compile_options(pipelining.tests.static.${area} PRIVATE ${PIPELINING_UNIT_TEST_OPTIONS})
endfunction()

# pipelining_fail_tests(AREA name... [INCLUDE folder]): must not compile, with the message that the source names.
function(pipelining_fail_tests area)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "INCLUDE" "")
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(without_source_lines -fno-caret-diagnostics)
  else()
    set(without_source_lines -fno-diagnostics-show-caret)
  endif()
  set(include "")
  if(arg_INCLUDE)
    set(include "-I${arg_INCLUDE}")
  endif()
  foreach(name IN LISTS arg_UNPARSED_ARGUMENTS)
    add_test(NAME fail.${area}.${name} COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/fail/expect_failure.py"
      "${CMAKE_CURRENT_SOURCE_DIR}/${name}.fail.cpp" "${CMAKE_CXX_COMPILER}" -std=c++20 -Wall -Wextra -Werror
      ${without_source_lines} "-I${PROJECT_SOURCE_DIR}/include" ${include})
    set_tests_properties(fail.${area}.${name} PROPERTIES LABELS "fail;${area}")
  endforeach()
endfunction()
