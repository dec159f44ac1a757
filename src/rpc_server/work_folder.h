// Licensed under the Apache License, Version 2.0; see LICENSE.
// Where the files of sessions lie: a folder of the server, in it one for each session, that only
// this user can open.
#ifndef DYCL_RPC_SERVER_WORK_FOLDER_H_
#define DYCL_RPC_SERVER_WORK_FOLDER_H_

#include <string>

namespace dycl {
namespace rpc {

class WorkFolder {
 public:
  // Makes the server's folder under `parent`, and removes those that killed servers left there.
  // Returns what is wrong, or "".
  std::string Create(const std::string& parent);
  // Makes the folder of a session; "" if it cannot be made.
  std::string CreateSession();
  static void Remove(const std::string& folder);
  // Removes everything.
  void Destroy();

  const std::string& path() const { return path_; }

 private:
  static void RemoveStale(const std::string& parent);

  std::string path_;
  int lock_ = -1;  // held as long as the server lives
  int sessions_ = 0;
};

// Whether a name that came over the network is the name of a file, and nothing that leads
// elsewhere.
bool IsPlainFileName(const std::string& name);

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_WORK_FOLDER_H_
