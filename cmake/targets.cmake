# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The targets that users link. Each carries include paths, the language level and link dependencies, nothing else.

find_package(Threads REQUIRED)

add_library(pipelining_core INTERFACE)
add_library(pipelining::core ALIAS pipelining_core)
set_target_properties(pipelining_core PROPERTIES EXPORT_NAME core)
target_compile_features(pipelining_core INTERFACE cxx_std_20)
target_link_libraries(pipelining_core INTERFACE Threads::Threads)
# Not a FILE_SET, which consumers with CMake before 3.23 and Meson do not understand.
target_include_directories(pipelining_core INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")

# The wings that need a host compiler only. Each stands on the five rooms of core; attention on config.hpp alone.
set(pipelining_host_wings "")
foreach(wing IN ITEMS attention cluster planner view)
  add_library(pipelining_${wing} INTERFACE)
  add_library(pipelining::${wing} ALIAS pipelining_${wing})
  set_target_properties(pipelining_${wing} PROPERTIES EXPORT_NAME ${wing})
  target_link_libraries(pipelining_${wing} INTERFACE pipelining_core)
  list(APPEND pipelining_host_wings pipelining_${wing})
endforeach()

# Everything that needs no other package, under one name.
add_library(pipelining_pipelining INTERFACE)
add_library(pipelining::pipelining ALIAS pipelining_pipelining)
set_target_properties(pipelining_pipelining PROPERTIES EXPORT_NAME pipelining)
target_link_libraries(pipelining_pipelining INTERFACE ${pipelining_host_wings})

# pipelining::mpi exists where MPI does. Headers only, so an installed package makes its own: see
# pipeliningConfig.cmake.in.
if(NOT PIPELINING_ENABLE_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PIPELINING_ENABLE_MPI is '${PIPELINING_ENABLE_MPI}', but must be AUTO, ON or OFF")
endif()
if(NOT PIPELINING_ENABLE_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX TRUE) # the C interface only
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(pipelining_mpi INTERFACE)
    add_library(pipelining::mpi ALIAS pipelining_mpi)
    target_link_libraries(pipelining_mpi INTERFACE pipelining_cluster MPI::MPI_CXX)
    message(STATUS "pipelining::mpi: yes, MPI ${MPI_CXX_VERSION}")
  elseif(PIPELINING_ENABLE_MPI STREQUAL "ON")
    message(FATAL_ERROR "PIPELINING_ENABLE_MPI is ON, but there is no MPI. Install one (Debian: libopenmpi-dev "
                        "openmpi-bin), or name its compiler with MPI_CXX_COMPILER, or set PIPELINING_ENABLE_MPI=OFF")
  else()
    message(STATUS "pipelining::mpi: no, MPI was not found (Debian: libopenmpi-dev openmpi-bin)")
  endif()
endif()
