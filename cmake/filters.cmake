# Our own seccomp filters, compiled by a program that is built first, and then part of the engine.
add_executable(write_filters src/plan/filters/write.cc src/plan/filter.cc src/plan/syscall_policy.cc
               src/sys/syscalls.cc src/base/result.cc)
target_include_directories(write_filters PRIVATE src)
target_link_libraries(write_filters PRIVATE pctx_flags pctx_fmt)
set(PCTX_READY_FILTERS ${CMAKE_BINARY_DIR}/ready_filters.cc)
add_custom_command(
  OUTPUT ${PCTX_READY_FILTERS}
  COMMAND write_filters > ${PCTX_READY_FILTERS}
  DEPENDS write_filters
  VERBATIM)
