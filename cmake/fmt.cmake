# pctx_fmt: the header-only fmt. Where its version is one that we know the insides of (Debian 12, Ubuntu 24.04), its
# functions are compiled once instead of in every file.
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(pctx_fmt STATIC cmake/fmt_once.cc)
  target_include_directories(pctx_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(pctx_fmt PRIVATE pctx_flags)
else()
  add_library(pctx_fmt INTERFACE)
  target_link_libraries(pctx_fmt INTERFACE fmt::fmt-header-only)
endif()
