# Compiling for another processor than this machine's, with the compiler of requirements/cross.txt, which brings its own
# C and C++ libraries. scripts/bundle sets BLINK_TARGET, such as aarch64-linux-gnu.2.28: processor, system, and the oldest
# glibc that the result runs with. Debian 10, Ubuntu 20.04 and all that is newer have that one.
set(CMAKE_SYSTEM_NAME Linux)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{BLINK_TARGET}")
set(CMAKE_CXX_COMPILER python -m ziglang c++ -target $ENV{BLINK_TARGET})
# Nothing of this machine's belongs into it.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE NEVER)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
