# Sets cuda_toolkit ("13.0") and cuda_archs ("80,120") when GPU code is to be compiled, else cpu_only_reason; ends the
# build with one sentence where GPU code is expected and cannot be compiled. find_nvcc.py decides.
set(cuda_toolkit "")
set(cuda_archs "")
set(cpu_only_reason "")

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_nvcc.py"
  OUTPUT_VARIABLE nvcc ERROR_VARIABLE why RESULT_VARIABLE status
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(status)
  message(FATAL_ERROR " ${why}")  # the space keeps CMake from breaking the sentence into lines
endif()
if(NOT nvcc)
  set(cpu_only_reason "${why}")
  message(STATUS "GPU code: none (${why})")
  return()
endif()

set(archs "$ENV{PCIE_ALLREDUCE_CUDA_ARCHS}")
if(archs STREQUAL "")
  set(archs 80 86 89 90 100 120)
endif()
string(REGEX REPLACE "[, ]+" ";" archs "${archs}")
foreach(arch IN LISTS archs)
  if(NOT arch MATCHES "^[1-9][0-9]+$")
    message(FATAL_ERROR " PCIE_ALLREDUCE_CUDA_ARCHS holds \"${arch}\"; it takes numbers like \"80;120\".")
  endif()
endforeach()
list(REMOVE_DUPLICATES archs)
list(SORT archs COMPARE NATURAL)
list(GET archs -1 newest)

# Machine code for each, and PTX of the newest for GPUs that are newer still.
list(TRANSFORM archs APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(APPEND CMAKE_CUDA_ARCHITECTURES "${newest}-virtual")

# PyPI's toolkit keeps its libraries in lib, where nvcc itself looks in lib64 alone.
cmake_path(GET nvcc PARENT_PATH nvcc_folder)
cmake_path(GET nvcc_folder PARENT_PATH toolkit_root)
if(toolkit_root MATCHES "/nvidia/cu[0-9]+$")
  set(CMAKE_CUDA_FLAGS_INIT "-L${toolkit_root}/lib")
endif()

execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE able ERROR_VARIABLE able)
foreach(arch IN LISTS archs)
  if(NOT able MATCHES "sm_${arch}[^0-9]")
    message(FATAL_ERROR " ${nvcc} cannot compile for sm_${arch} (sm_100 and sm_120 need CUDA 12.8 or newer): "
      "use a newer one, or set PCIE_ALLREDUCE_CUDA_ARCHS to architectures that it knows.")
  endif()
endforeach()

set(CMAKE_CUDA_COMPILER "${nvcc}")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # the module must import where there is no driver
enable_language(CUDA)

string(REGEX MATCH "^[0-9]+\\.[0-9]+" cuda_toolkit "${CMAKE_CUDA_COMPILER_VERSION}")
list(JOIN archs "," cuda_archs)
message(STATUS "GPU code: sm_${cuda_archs} by ${nvcc} ${cuda_toolkit}")
