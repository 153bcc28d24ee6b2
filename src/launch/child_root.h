// The box's root, between clone and exec: see child_plan.h for the rules of that place.
#pragma once

#include "launch/child_plan.h"

namespace pctx {

// Takes hold of everything that will be lent, while we still have the caller's own uid: a folder below a closed home is
// reached as the caller reaches it.
void clone_binds(ChildPlan& plan) noexcept;

// A new root, attached and entered. The old one is then hidden, not yet gone: close_box detaches it.
int enter_root(const ChildPlan& plan) noexcept;
// One step of the plan. Masks are left to close_box.
void apply(const ChildPlan& plan, ChildOp& op, int root, int& proc, std::size_t at) noexcept;
// The program that pid 1 becomes, as a descriptor.
int place_init(const ChildPlan& plan, int root) noexcept;

// No path leads back to the old root, and the new one can no longer be written.
void detach_old_root(const ChildPlan& plan, int root) noexcept;
void seal_root(const ChildPlan& plan, int root) noexcept;
void apply_masks(const ChildPlan& plan, int root) noexcept;

// Bounds of our network namespace, by a /proc whose mount can be written to. Kernels do not have all of them, and
// containers may have a /proc that cannot.
void apply_network_settings(const ChildPlan& plan, int proc) noexcept;

// A /proc for our pid namespace, with the plan's kernel settings. `first_pid`: of the next process in it, 0 for any.
// The settings of a network namespace are its makers' business, which in a cold run is the guest's process.
enum class Settings : std::uint8_t { none, of_user_namespace, of_both_namespaces };
int make_proc(const ChildPlan& plan, const ChildOp& op, int root, std::size_t at, int first_pid = 0,
              Settings settings = Settings::of_user_namespace) noexcept;

// Building stones for boxes that are cut from a template.
// The folder that a scratch folder has from the start, if it has one.
bool make_inside(const ChildOp& op, int folder) noexcept;
bool attach_tree(int tree, int root, const char* target, std::uint64_t attributes) noexcept;
int new_filesystem(const char* type, const char* const* options, std::uint64_t attributes) noexcept;
bool write_file(int dir, const char* path, const void* text, std::size_t size, unsigned mode, int flags,
                std::uint64_t extend_to = 0) noexcept;

}  // namespace pctx
