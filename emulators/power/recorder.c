/* Records what a process does to the files below one directory. It is loaded before the C library (LD_PRELOAD).

       POWER_ROOT      the directory, as a real path; anything else goes by unrecorded
       POWER_LOG       the file of the records; it lies outside of POWER_ROOT
       POWER_KILL_AT   optional: SIGKILL to this process, right after a record: "D3" is its third that makes a directory,
                       "*3" its third of any kind

   Each call that changes something, and its record, happen under one lock between all processes. So the order of the
   records is the order of the effects. A record is a head, and then its names and bytes, in the byte order of the
   machine. Files and directories are named by their inodes. `emulators/power/recording.py` reads it.

   Not recorded: what is written through a mapping of memory (of ours that is SQLite's -shm, which it makes anew), and
   what the C library does by itself, such as `fopen`. A replay that is compared with the real files finds such gaps. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct head {
    uint32_t what;    /* a letter, see emulators/power/recording.py */
    uint32_t pid;
    uint64_t inode;   /* of what is written or synced, or of what a name leads to now */
    uint64_t from, to; /* directories */
    int64_t offset;
    uint32_t name_bytes, other_bytes, data_bytes, spare;
};

static long records; /* of those that POWER_KILL_AT counts */

/* System calls are made directly where this file needs them for itself: its own functions must not be recorded. */
static int plain_open(int at, const char *path, int flags) { return (int)syscall(SYS_openat, at, path, flags | O_CLOEXEC, 0600); }

static int locked(void) {
    const char *log = getenv("POWER_LOG");
    int fd = log ? plain_open(AT_FDCWD, log, O_WRONLY | O_APPEND) : -1;
    if (fd < 0) {
        fprintf(stderr, "POWER_LOG cannot be opened: %s\n", strerror(errno));
        abort();
    }
    while (flock(fd, LOCK_EX)) {
    }
    return fd;
}

static void unlocked(int fd) { syscall(SYS_close, fd); }

static void put(int log, const void *bytes, size_t count) {
    while (count) {
        ssize_t done = syscall(SYS_write, log, bytes, count);
        if (done < 0) {
            fprintf(stderr, "POWER_LOG cannot be written: %s\n", strerror(errno));
            abort();
        }
        bytes = (const char *)bytes + done;
        count -= (size_t)done;
    }
}

static void record(int log, struct head head, const char *name, const char *other, const struct iovec *data, size_t count) {
    head.pid = (uint32_t)getpid();
    head.name_bytes = name ? (uint32_t)strlen(name) : 0;
    head.other_bytes = other ? (uint32_t)strlen(other) : 0;
    head.data_bytes = (uint32_t)count;
    put(log, &head, sizeof head);
    put(log, name, head.name_bytes);
    put(log, other, head.other_bytes);
    for (size_t left = count; left; data++) {
        size_t here = data->iov_len < left ? data->iov_len : left;
        put(log, data->iov_base, here);
        left -= here;
    }
    const char *last = getenv("POWER_KILL_AT");
    if (last && (*last == '*' || (uint32_t)*last == head.what) && __sync_add_and_fetch(&records, 1) == atol(last + 1))
        kill(getpid(), SIGKILL);
}

static int below(const char *path) {
    const char *root = getenv("POWER_ROOT");
    size_t size = root ? strlen(root) : 0;
    return size && !strncmp(path, root, size) && (path[size] == '/' || !path[size]);
}

static int is_ours(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

/* The inode of an open file or directory of ours, or 0. */
static uint64_t inode_of(int fd) {
    struct stat seen;
    if (fd < 0 || fstat(fd, &seen) || !(S_ISREG(seen.st_mode) || S_ISDIR(seen.st_mode)) || !is_ours(fd)) return 0;
    return seen.st_ino;
}

/* Takes a path apart. Returns the inode of the directory if it is ours, or 0. `name`: NAME_MAX + 1 bytes. */
static uint64_t directory_of(int at, const char *path, char *name) {
    char above[PATH_MAX];
    size_t size = path ? strlen(path) : 0;
    while (size > 1 && path[size - 1] == '/') size--;
    if (!size || size >= sizeof above) return 0;
    memcpy(above, path, size);
    above[size] = 0;
    char *slash = strrchr(above, '/');
    const char *last = slash ? slash + 1 : above;
    if (!*last || strlen(last) > NAME_MAX) return 0;
    strcpy(name, last);
    if (slash) slash[slash == above] = 0;
    int saved = errno, fd = plain_open(at, slash ? above : ".", O_PATH | O_DIRECTORY);
    uint64_t inode = inode_of(fd);
    if (fd >= 0) unlocked(fd);
    errno = saved;
    return inode;
}

static uint64_t inode_at(int at, const char *path) {
    struct stat seen;
    int saved = errno;
    uint64_t inode = fstatat(at, path, &seen, AT_SYMLINK_NOFOLLOW) ? 0 : seen.st_ino;
    errno = saved;
    return inode;
}

#define UNDER_LOCK(result, call, ...)     \
    int log = locked();                   \
    result = call;                        \
    int saved = errno;                    \
    __VA_ARGS__                           \
    unlocked(log);                        \
    errno = saved

/* --- names --------------------------------------------------------------------------------------- */

static int open_recorded(int at, const char *path, int flags, mode_t mode) {
    char name[NAME_MAX + 1];
    uint64_t directory = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE ? directory_of(at, path, name) : 0;
    if (!directory) return (int)syscall(SYS_openat, at, path, flags, mode);
    int log = locked();
    uint64_t before = inode_at(at, path);
    int fd = (int)syscall(SYS_openat, at, path, flags, mode), saved = errno;
    uint64_t inode = fd < 0 ? 0 : inode_of(fd);
    if (inode && !before) record(log, (struct head){.what = 'C', .inode = inode, .from = directory}, name, NULL, NULL, 0);
    else if (inode && flags & O_TRUNC) record(log, (struct head){.what = 'T', .inode = inode}, NULL, NULL, NULL, 0);
    unlocked(log);
    errno = saved;
    return fd;
}

#define WITH_MODE                                                      \
    mode_t mode = 0;                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                               \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode = (mode_t)va_arg(more, int);                              \
        va_end(more);                                                  \
    }

int open(const char *path, int flags, ...) { WITH_MODE return open_recorded(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { WITH_MODE return open_recorded(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { WITH_MODE return open_recorded(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { WITH_MODE return open_recorded(at, path, flags | O_LARGEFILE, mode); }
int __open_2(const char *path, int flags) { return open_recorded(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_recorded(AT_FDCWD, path, flags | O_LARGEFILE, 0); }
int creat(const char *path, mode_t mode) { return open_recorded(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int mkdirat(int at, const char *path, mode_t mode) {
    char name[NAME_MAX + 1];
    uint64_t directory = directory_of(at, path, name);
    if (!directory) return (int)syscall(SYS_mkdirat, at, path, mode);
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_mkdirat, at, path, mode), {
        if (!result) record(log, (struct head){.what = 'D', .inode = inode_at(at, path), .from = directory}, name, NULL, NULL, 0);
    });
    return result;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int mknodat(int at, const char *path, mode_t mode, dev_t device) {
    char name[NAME_MAX + 1];
    uint64_t directory = S_ISREG(mode) || !(mode & S_IFMT) ? directory_of(at, path, name) : 0;
    if (!directory) return (int)syscall(SYS_mknodat, at, path, mode, device);
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_mknodat, at, path, mode, device), {
        if (!result) record(log, (struct head){.what = 'C', .inode = inode_at(at, path), .from = directory}, name, NULL, NULL, 0);
    });
    return result;
}

int mknod(const char *path, mode_t mode, dev_t device) { return mknodat(AT_FDCWD, path, mode, device); }

int linkat(int at, const char *path, int at_new, const char *path_new, int flags) {
    char name[NAME_MAX + 1];
    uint64_t directory = directory_of(at_new, path_new, name);
    if (!directory) return (int)syscall(SYS_linkat, at, path, at_new, path_new, flags);
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_linkat, at, path, at_new, path_new, flags), {
        if (!result) record(log, (struct head){.what = 'L', .inode = inode_at(at_new, path_new), .from = directory}, name, NULL, NULL, 0);
    });
    return result;
}

int link(const char *path, const char *path_new) { return linkat(AT_FDCWD, path, AT_FDCWD, path_new, 0); }

int unlinkat(int at, const char *path, int flags) {
    char name[NAME_MAX + 1];
    uint64_t directory = directory_of(at, path, name);
    if (!directory) return (int)syscall(SYS_unlinkat, at, path, flags);
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_unlinkat, at, path, flags), {
        if (!result) record(log, (struct head){.what = 'U', .from = directory}, name, NULL, NULL, 0);
    });
    return result;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat2(int at, const char *path, int at_new, const char *path_new, unsigned flags) {
    char name[NAME_MAX + 1], name_new[NAME_MAX + 1];
    uint64_t from = directory_of(at, path, name), to = directory_of(at_new, path_new, name_new);
    if (!from && !to) return (int)syscall(SYS_renameat2, at, path, at_new, path_new, flags);
    if (!from || !to) {
        fprintf(stderr, "a file was renamed into or out of what is recorded: %s, %s\n", path, path_new);
        abort();
    }
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_renameat2, at, path, at_new, path_new, flags), {
        if (!result) record(log, (struct head){.what = 'R', .inode = inode_at(at_new, path_new), .from = from, .to = to}, name, name_new, NULL, 0);
    });
    return result;
}

int renameat(int at, const char *path, int at_new, const char *path_new) { return renameat2(at, path, at_new, path_new, 0); }
int rename(const char *path, const char *path_new) { return renameat2(AT_FDCWD, path, AT_FDCWD, path_new, 0); }

/* --- content ------------------------------------------------------------------------------------- */

static ssize_t write_recorded(int fd, const struct iovec *data, int pieces, off_t offset) {
    uint64_t inode = inode_of(fd);
    if (!inode) return offset < 0 ? syscall(SYS_writev, fd, data, pieces) : syscall(SYS_pwritev, fd, data, pieces, offset, 0);
    ssize_t result;
    struct stat seen;
    off_t at = offset;
    int log = locked();
    if (fcntl(fd, F_GETFL) & O_APPEND) at = fstat(fd, &seen) ? 0 : seen.st_size;
    else if (offset < 0) at = lseek(fd, 0, SEEK_CUR);
    result = offset < 0 ? syscall(SYS_writev, fd, data, pieces) : syscall(SYS_pwritev, fd, data, pieces, offset, 0);
    int saved = errno;
    if (result > 0) record(log, (struct head){.what = 'W', .inode = inode, .offset = at}, NULL, NULL, data, (size_t)result);
    unlocked(log);
    errno = saved;
    return result;
}

#define ONE (&(struct iovec){(void *)bytes, count})
ssize_t write(int fd, const void *bytes, size_t count) { return write_recorded(fd, ONE, 1, -1); }
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) { return write_recorded(fd, ONE, 1, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) { return write_recorded(fd, ONE, 1, offset); }
ssize_t writev(int fd, const struct iovec *data, int pieces) { return write_recorded(fd, data, pieces, -1); }
ssize_t pwritev(int fd, const struct iovec *data, int pieces, off_t offset) { return write_recorded(fd, data, pieces, offset); }
ssize_t pwritev64(int fd, const struct iovec *data, int pieces, off64_t offset) { return write_recorded(fd, data, pieces, offset); }

/* These would move bytes that this file does not see. Whoever calls them falls back to read and write. */
ssize_t sendfile(int to, int from, off_t *offset, size_t count) {
    if (!inode_of(to)) return syscall(SYS_sendfile, to, from, offset, count);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) { return sendfile(to, from, offset, count); }
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *at_new, size_t count, unsigned flags) {
    if (!inode_of(to)) return syscall(SYS_copy_file_range, from, at, to, at_new, count, flags);
    errno = EXDEV;
    return -1;
}

int ftruncate(int fd, off_t size) {
    uint64_t inode = inode_of(fd);
    if (!inode) return (int)syscall(SYS_ftruncate, fd, size);
    int result;
    UNDER_LOCK(result, (int)syscall(SYS_ftruncate, fd, size), {
        if (!result) record(log, (struct head){.what = 'T', .inode = inode, .offset = size}, NULL, NULL, NULL, 0);
    });
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

static int allocate(int fd, off_t offset, off_t count) {
    struct stat seen;
    if (fstat(fd, &seen)) return errno;
    return seen.st_size < offset + count && ftruncate(fd, offset + count) ? errno : 0;
}
int posix_fallocate(int fd, off_t offset, off_t count) { return allocate(fd, offset, count); }
int posix_fallocate64(int fd, off64_t offset, off64_t count) { return allocate(fd, offset, count); }

static int sync_recorded(int fd, long call) {
    uint64_t inode = inode_of(fd);
    if (!inode) return (int)syscall(call, fd);
    int result;
    /* The disk of the machine is spared: what lasts is what the record says. */
    UNDER_LOCK(result, 0, { record(log, (struct head){.what = 'S', .inode = inode}, NULL, NULL, NULL, 0); });
    return result;
}
int fsync(int fd) { return sync_recorded(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_recorded(fd, SYS_fdatasync); }

void sync(void) {
    int log = locked();
    record(log, (struct head){.what = 'A'}, NULL, NULL, NULL, 0);
    unlocked(log);
}
int syncfs(int fd) {
    if (!inode_of(fd)) return (int)syscall(SYS_syncfs, fd);
    sync();
    return 0;
}
