// One message with descriptors beside it, over a SOCK_SEQPACKET socket: between callers, Broker and Zygotes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/units.h"

namespace pctx::wire {

inline constexpr std::size_t kMaxPacket = 128_KiB;
inline constexpr std::size_t kMaxFds = 16;

struct Packet {
  std::string text;
  std::vector<Fd> fds;
};

enum class Received { packet, nothing, end, stripped };

// Never waits. `end`: the other side is gone, or sent what is no packet of ours (too long). `stripped`: the text is
// there, descriptors are missing: there were too many, or this process may have no more.
Received receive(int socket, Packet& packet);
// Never waits: a peer that does not read is treated as gone.
bool send(int socket, std::string_view text, const std::vector<int>& fds = {});

Result<std::pair<Fd, Fd>> pair(int type);
// A socket with a name that only this user may use; not listening yet. Whatever has the name must be gone.
Result<Fd> bind_at(const std::string& path);
// `failure`: what the error says if nobody listens there.
Result<Fd> connect_to(const std::string& path, const char* failure);

}  // namespace pctx::wire
