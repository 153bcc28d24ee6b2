// Who may hold how many of the relay's descriptors. The kernel's limit holds for all boxes together: without this, one
// of them could take what the others, and our own socket, need. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

namespace pctx::net {

class Descriptors {
 public:
  // For what is no box's: our own sockets, the resolver's, those of a message that comes.
  static constexpr std::size_t kReserve = 64;

  // Of one box, beside its ends.
  struct Share {
    std::size_t held = 0;
  };

  explicit Descriptors(std::size_t limit) : capacity_(limit - std::min(kReserve, limit / 2)) {}

  // A box's ends: it has them for as long as it lives. False: there is no room for this box.
  bool take_ends(std::size_t count) {
    if (free() < count && make_room) make_room(count - free());
    if (free() < count) return false;
    held_ += count;
    ++boxes_;
    return true;
  }
  void give_back_ends(std::size_t count) {
    held_ -= count;
    --boxes_;
  }

  // As long as there are many, a box gets half of what the others have left. Up to what everybody is guaranteed, room
  // is made: by taking from those who have more.
  bool try_take(Share& share, std::size_t count) {
    if (share.held + count <= guaranteed()) {
      if (free() < count && make_room) make_room(count - free());
      if (free() < count) return false;
    } else if (count > free() || share.held + count > (share.held + free()) / 2) {
      return false;
    }
    share.held += count;
    held_ += count;
    return true;
  }
  void give_back(Share& share, std::size_t count) {
    share.held -= count;
    held_ -= count;
  }
  std::size_t free() const { return capacity_ - held_; }
  // The more boxes there are, the less it can be.
  std::size_t guaranteed() const {
    return std::clamp<std::size_t>(capacity_ / (2 * std::max<std::size_t>(boxes_, 1)), 8, 64);
  }

  // Makes boxes that hold more than is guaranteed give back so many, if there are such.
  std::function<void(std::size_t count)> make_room;

 private:
  std::size_t capacity_, held_ = 0, boxes_ = 0;
};

}  // namespace pctx::net
