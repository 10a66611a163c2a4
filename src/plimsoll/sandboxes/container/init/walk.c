/* A walk over the sandbox's file system that makes of each entry two hashes: of its path, and
 * of all that could have changed about it. */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { DEEPEST = 512, MOUNTED_FILE = 1 << 20, ATTRIBUTE_BYTES = 64 << 10 };

/* What is hashed of an entry; without holes, so that its bytes are its values. */
struct state {
    uint64_t mode, uid, gid, size, rdev, mtime[2], ctime[2], more;
};

static uint64_t hash_path(const struct walk *walk, uint64_t parent, const char *name)
{
    char bytes[sizeof parent + NAME_MAX + 1];
    size_t length = strnlen(name, NAME_MAX);
    memcpy(bytes, &parent, sizeof parent);
    memcpy(bytes + sizeof parent, name, length);
    return siphash(walk->key, bytes, sizeof parent + length);
}

/* Names and values of a folder's attributes: a default ACL would reach what is made in it. */
static uint64_t hash_attributes(const struct walk *walk, int folder)
{
    static char names[ATTRIBUTE_BYTES], value[ATTRIBUTE_BYTES];
    uint64_t hash = 0;
    ssize_t size = flistxattr(folder, names, sizeof names);
    for (const char *at = names; size > 0 && at < names + size; at += strlen(at) + 1) {
        ssize_t got = fgetxattr(folder, at, value, sizeof value);
        uint64_t both[] = {
            hash,
            siphash(walk->key, at, strlen(at)),
            siphash(walk->key, value, got > 0 ? (size_t)got : 0),
        };
        hash = siphash(walk->key, both, sizeof both);
    }
    return hash;
}

static uint64_t hash_link(const struct walk *walk, const struct place *place)
{
    char to[PATH_MAX];
    ssize_t size = readlinkat(place->parent, place->name, to, sizeof to);
    return siphash(walk->key, to, size > 0 ? (size_t)size : 0);
}

/* A file that is mounted is the engine's to write: it is the same if its content is. */
static uint64_t hash_content(const struct walk *walk, const struct place *place)
{
    static char content[MOUNTED_FILE];
    size_t size = 0;
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int file = openat(place->parent, place->name, flags);
    for (ssize_t got = 1; file >= 0 && got > 0 && size < sizeof content; size += (size_t)got)
        if ((got = read(file, content + size, sizeof content - size)) < 0)
            break;
    if (file >= 0)
        close(file);
    return siphash(walk->key, content, size);
}

static void keep_latest(struct walk *walk, const struct timespec *time)
{
    struct timespec *latest = &walk->latest;
    if (time->tv_sec > latest->tv_sec ||
        (time->tv_sec == latest->tv_sec && time->tv_nsec > latest->tv_nsec))
        *latest = *time;
}

/* For what is no folder. The time of change is the kernel's own: nobody can set it back. */
static uint64_t hash_entry(struct walk *walk, const struct place *place, const struct stat *info,
                           bool mounted)
{
    struct state state = {.mode = info->st_mode, .uid = info->st_uid, .gid = info->st_gid};
    state.rdev = info->st_rdev;
    state.size = (uint64_t)info->st_size;
    if (mounted && S_ISREG(info->st_mode)) {
        state.more = hash_content(walk, place);
    } else if (!mounted) {
        state.mtime[0] = (uint64_t)info->st_mtim.tv_sec;
        state.mtime[1] = (uint64_t)info->st_mtim.tv_nsec;
        state.ctime[0] = (uint64_t)info->st_ctim.tv_sec;
        state.ctime[1] = (uint64_t)info->st_ctim.tv_nsec;
        state.more = S_ISLNK(info->st_mode) ? hash_link(walk, place) : 0;
        keep_latest(walk, &info->st_ctim);
    }
    return siphash(walk->key, &state, sizeof state);
}

static uint64_t hash_folder(const struct walk *walk, int folder, const struct stat *info)
{
    struct state state = {.mode = info->st_mode, .uid = info->st_uid, .gid = info->st_gid};
    state.more = hash_attributes(walk, folder);
    return siphash(walk->key, &state, sizeof state);
}

static bool walk_folder(struct walk *walk, int folder, uint64_t path, bool removable, int depth);

static bool walk_deeper(struct walk *walk, struct place *place, int depth)
{
    struct stat info;
    int folder = open_folder(place->parent, place->name);
    if (folder < 0 || fstat(folder, &info) < 0)
        return false;
    place->state = hash_folder(walk, folder, &info);
    place->atime = info.st_atim;
    place->mtime = info.st_mtim;
    place->size = info.st_size;
    enum met met = walk->meet(walk, place);
    bool on = met != STOP;
    if (met == GO_ON)
        on = walk_folder(walk, folder, place->path, place->removable, depth + 1) &&
             (!walk->leave || walk->leave(place, folder));
    int error = errno;
    close(folder);
    errno = error;
    return on;
}

static bool walk_entry(struct walk *walk, struct place *place, int depth)
{
    struct stat info;
    const struct border *border = border_at(&walk->borders, walk->path);
    if (border && border->rule == LEFT_OUT)
        return true;
    if (border)
        place->removable = border->rule == WALKED;
    if (fstatat(place->parent, place->name, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    if (S_ISDIR(info.st_mode))
        return walk_deeper(walk, place, depth);
    place->state = hash_entry(walk, place, &info, border != NULL);
    return walk->meet(walk, place) != STOP;
}

static bool walk_folder(struct walk *walk, int folder, uint64_t path, bool removable, int depth)
{
    struct names names;
    size_t length = strlen(walk->path);
    bool on = list_names(folder, &names);
    if (depth > DEEPEST) {
        errno = ELOOP;
        on = false;
    }
    for (size_t i = 0; on && i < names.count; i++) {
        struct place place = {.parent = folder, .name = names.all[i], .removable = removable};
        place.path = hash_path(walk, path, place.name);
        if (length + strlen(place.name) + 2 > sizeof walk->path) {
            errno = ENAMETOOLONG;
            on = false;
            break;
        }
        walk->path[length] = '/';
        strcpy(walk->path + length + 1, place.name);
        on = walk_entry(walk, &place, depth);
        if (on)
            walk->path[length] = 0;
    }
    int error = errno;
    free_names(&names);
    errno = error;
    return on;
}

/* Where it stops, `path` is the place it stopped at. The root itself is its first entry. */
bool walk_all(struct walk *walk)
{
    struct place root = {.parent = AT_FDCWD, .name = "/"};
    root.path = hash_path(walk, 0, root.name);
    walk->path[0] = 0;
    errno = 0;
    root.removable = true;
    return walk_deeper(walk, &root, 0);
}
