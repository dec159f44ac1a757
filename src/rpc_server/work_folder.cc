// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "work_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace dycl {
namespace rpc {
namespace {

const char kPrefix[] = "dycl-rpc-server.";

int RemoveEntry(const char* path, const struct stat*, int, FTW*) { return remove(path); }

}  // namespace

std::string WorkFolder::Create(const std::string& parent) {
  // Sessions run inside their folders, where a relative name would mean something else.
  char* absolute = realpath(parent.c_str(), nullptr);
  if (absolute == nullptr) return "there is no folder '" + parent + "': " + strerror(errno);
  std::string where = absolute;
  free(absolute);
  RemoveStale(where);
  std::string pattern = where + "/" + kPrefix + "XXXXXX";
  std::vector<char> name(pattern.begin(), pattern.end());
  name.push_back('\0');
  if (mkdtemp(name.data()) == nullptr) {
    return "cannot make a folder in '" + parent + "': " + strerror(errno);
  }
  path_ = name.data();
  lock_ = open((path_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0) return "cannot lock '" + path_ + "'";
  return "";
}

// A server that was killed could not clean up. Its lock went with it; a folder whose lock can be
// had is nobody's.
void WorkFolder::RemoveStale(const std::string& parent) {
  DIR* dir = opendir(parent.c_str());
  if (dir == nullptr) return;
  while (dirent* entry = readdir(dir)) {
    if (strncmp(entry->d_name, kPrefix, sizeof(kPrefix) - 1) != 0) continue;
    std::string folder = parent + "/" + entry->d_name;
    struct stat info;
    if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid()) {
      continue;
    }
    int lock = open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;  // a server that is about to make it
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) Remove(folder);
    close(lock);
  }
  closedir(dir);
}

std::string WorkFolder::CreateSession() {
  std::string folder = path_ + "/session" + std::to_string(++sessions_);
  return mkdir(folder.c_str(), 0700) == 0 ? folder : "";
}

void WorkFolder::Remove(const std::string& folder) {
  nftw(folder.c_str(), RemoveEntry, 16, FTW_DEPTH | FTW_PHYS);
}

void WorkFolder::Destroy() {
  if (!path_.empty()) Remove(path_);
  if (lock_ >= 0) close(lock_);
  lock_ = -1;
  path_.clear();
}

bool IsPlainFileName(const std::string& name) {
  if (name.empty() || name.size() > 200 || name == "." || name == "..") return false;
  for (char c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < ' ' || c == 127) return false;
  }
  return true;
}

}  // namespace rpc
}  // namespace dycl
