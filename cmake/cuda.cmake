# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# pipelining::cuda and pipelining::nccl exist where the toolkit and NCCL do. Headers only, so an installed package makes
# its own: see pipeliningConfig.cmake.in.

foreach(part IN ITEMS CUDA NCCL)
  if(NOT PIPELINING_ENABLE_${part} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PIPELINING_ENABLE_${part} is '${PIPELINING_ENABLE_${part}}', but must be AUTO, ON or OFF")
  endif()
endforeach()
if(PIPELINING_ENABLE_NCCL STREQUAL "ON" AND PIPELINING_ENABLE_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "PIPELINING_ENABLE_NCCL is ON, but PIPELINING_ENABLE_CUDA is OFF, and NCCL needs CUDA. "
                      "Set PIPELINING_ENABLE_CUDA=ON, or PIPELINING_ENABLE_NCCL=OFF")
endif()

if(NOT PIPELINING_ENABLE_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart)
    add_library(pipelining_cuda INTERFACE)
    add_library(pipelining::cuda ALIAS pipelining_cuda)
    target_link_libraries(pipelining_cuda INTERFACE pipelining_cluster CUDA::cudart ${CMAKE_DL_LIBS})
    message(STATUS "pipelining::cuda: yes, CUDA ${CUDAToolkit_VERSION}")
  elseif(PIPELINING_ENABLE_CUDA STREQUAL "ON" OR PIPELINING_ENABLE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "PIPELINING_ENABLE_CUDA or PIPELINING_ENABLE_NCCL is ON, but there is no CUDA toolkit. Install "
                        "one, or name its folder with CUDAToolkit_ROOT, or set both to OFF")
  else()
    message(STATUS "pipelining::cuda: no, the CUDA toolkit was not found (CUDAToolkit_ROOT)")
  endif()
endif()

if(NOT PIPELINING_ENABLE_NCCL STREQUAL "OFF" AND TARGET pipelining_cuda)
  list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
  find_package(NCCL QUIET)
  list(POP_FRONT CMAKE_MODULE_PATH)
  if(NCCL_FOUND)
    add_library(pipelining_nccl INTERFACE)
    add_library(pipelining::nccl ALIAS pipelining_nccl)
    target_link_libraries(pipelining_nccl INTERFACE pipelining_cuda NCCL::nccl)
    message(STATUS "pipelining::nccl: yes, NCCL ${NCCL_VERSION}")
  elseif(PIPELINING_ENABLE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "PIPELINING_ENABLE_NCCL is ON, but there is no NCCL. Install it (libnccl-dev), or name its "
                        "folder with NCCL_HOME, or set PIPELINING_ENABLE_NCCL=OFF")
  else()
    message(STATUS "pipelining::nccl: no, NCCL was not found (NCCL_HOME)")
  endif()
endif()
