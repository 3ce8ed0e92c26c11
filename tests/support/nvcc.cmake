# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# nvcc and the headers of CUDA and NCCL, for tests of what users compile with them.

find_program(PIPELINING_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
mark_as_advanced(PIPELINING_NVCC)
set(pipelining_nccl_option "")
# Portable kernels of which no figure is taken: to optimise them takes longer than they run in the interpreter. Those for Hopper
# would have sums in memory, which wgmma does not add to.
set(pipelining_plain_kernels "")
if(PIPELINING_NVCC)
  execute_process(COMMAND "${PIPELINING_NVCC}" --Ofast-compile=mid --version RESULT_VARIABLE unknown OUTPUT_QUIET ERROR_QUIET)
  if(unknown EQUAL 0)
    set(pipelining_plain_kernels --Ofast-compile=mid)
  endif()
  cmake_path(GET PIPELINING_NVCC PARENT_PATH toolkit)
  cmake_path(GET toolkit PARENT_PATH toolkit)
  find_path(PIPELINING_CUDA_INCLUDE cuda_runtime_api.h
    HINTS "${toolkit}/include" "${toolkit}/targets/x86_64-linux/include")
  find_path(PIPELINING_NCCL_INCLUDE nccl.h HINTS "${PIPELINING_CUDA_INCLUDE}" ENV NCCL_HOME PATH_SUFFIXES include)
  mark_as_advanced(PIPELINING_CUDA_INCLUDE PIPELINING_NCCL_INCLUDE)
  if(PIPELINING_NCCL_INCLUDE)
    set(pipelining_nccl_option -I "${PIPELINING_NCCL_INCLUDE}")
  endif()
endif()

# pipelining_nvcc_object(OUT_VARIABLE source.cu [OPTIMISED] [option...]) compiles a CUDA source with nvcc, as users do, with the PTX
# of its kernels inside, and sets OUT_VARIABLE to the object. Link it to pipelining.tests.standin, or to CUDA. Include
# paths among the options come before that of the library. Code for the host mostly takes longer to optimise than it runs
# in a test: it is optimised where OPTIMISED says that it runs longer, and in release builds, which measure; kernels always.
function(pipelining_nvcc_object out source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "OPTIMISED" "" "")
  set(level 0)
  if(arg_OPTIMISED)
    set(level 1)
  endif()
  cmake_path(ABSOLUTE_PATH source NORMALIZE OUTPUT_VARIABLE input)
  cmake_path(GET source STEM name)
  string(MAKE_C_IDENTIFIER "${arg_UNPARSED_ARGUMENTS}" variant)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${name}${variant}.cu.o")
  add_custom_command(OUTPUT "${output}"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${PIPELINING_NVCC}" -std=c++20 $<IF:$<CONFIG:Release>,-O2,-O${level}> -gencode arch=compute_80,code=compute_80 --no-compress
      -ccbin "${CMAKE_CXX_COMPILER}" ${arg_UNPARSED_ARGUMENTS} -I "${PROJECT_SOURCE_DIR}/include" -I "${PROJECT_SOURCE_DIR}"
      ${pipelining_nccl_option} -MD -MF "${output}.d" -c -o "${output}" "${input}"
    DEPENDS "${input}" DEPFILE "${output}.d" COMMENT "Compiling ${source} with nvcc" VERBATIM)
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

# pipelining_joined_sources(OUT_VARIABLE NAME source.cu...) sets OUT_VARIABLE to NAME.cu, which includes the sources: nvcc takes
# longer to read headers that they share than to compile one of them.
function(pipelining_joined_sources out name)
  set(text "")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    string(APPEND text "#include <${source}>\n")
  endforeach()
  set(joined "${CMAKE_CURRENT_BINARY_DIR}/${name}.cu")
  file(CONFIGURE OUTPUT "${joined}" CONTENT "${text}" @ONLY)
  set(${out} "${joined}" PARENT_SCOPE)
endfunction()

# pipelining_nvcc_static_test(NAME AREA source.cpp [label...]): nvcc's own front end evaluates what the source asserts. Its
# pass for the device alone does: the host's compiler, which would be next, is asked by another test.
function(pipelining_nvcc_static_test name area source)
  if(NOT PIPELINING_NVCC OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  add_test(NAME static.${name}.nvcc COMMAND "${PIPELINING_NVCC}" -x cu -std=c++20 -arch=sm_80
    -ccbin "${CMAKE_CXX_COMPILER}" "-I${PROJECT_SOURCE_DIR}/include"
    --ptx -o "${CMAKE_CURRENT_BINARY_DIR}/static.ptx" "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
  set_tests_properties(static.${name}.nvcc PROPERTIES LABELS "static;cuda;${area};${ARGN}" TIMEOUT 300)
endfunction()
