/* Packs a file or a folder into the tree stream that plimsoll/sandboxes/trees/stream.py defines.
 *
 * A record is a line `KIND MODE(octal) UID GID MTIME_NS SIZE NAMELEN EXTRALEN`, the name, the
 * extra bytes, and a file's content. Holes in files stay holes, and a file with several names is
 * packed once.
 */
#include "plimsoll.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST_PATH = 3072 };

static const char NO_FILE[] = "neither a file, a folder nor a link";
static const char TOO_LONG[] = "its path is too long";

static char buffer[128 << 10];
static size_t buffered;

static char name[PATH_MAX]; /* of the entry that is packed, relative to the source */
static const char *source;

static _Noreturn void fail_at_name(const char *why)
{
    fail_and_exit("%s%s%s: %s", source, *name ? "/" : "", name, why);
}

static void flush(void)
{
    for (size_t done = 0; done < buffered;) {
        ssize_t sent = write(STDOUT_FILENO, buffer + done, buffered - done);
        if (sent < 0 && errno != EINTR)
            fail_and_exit("transfer: %s", strerror(errno));
        done += sent > 0 ? (size_t)sent : 0;
    }
    buffered = 0;
}

static void put(const char *bytes, size_t size)
{
    if (sizeof buffer - buffered < size)
        flush();
    memcpy(buffer + buffered, bytes, size);
    buffered += size;
}

static void put_record(char kind, const struct stat *info, long long size, const char *extra)
{
    char line[160];
    long long mtime = info->st_mtim.tv_sec * 1000000000LL + info->st_mtim.tv_nsec;
    int length = snprintf(line, sizeof line, "%c %o %u %u %lld %lld %zu %zu\n", kind,
                          info->st_mode & 07777, info->st_uid, info->st_gid, mtime, size,
                          strlen(name), strlen(extra));
    put(line, (size_t)length);
    put(name, strlen(name));
    put(extra, strlen(extra));
}

static void put_content(int file, long long left)
{
    while (left) {
        if (buffered == sizeof buffer)
            flush();
        size_t most = sizeof buffer - buffered;
        ssize_t got = read(file, buffer + buffered, (long long)most < left ? most : (size_t)left);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail_at_name(strerror(errno));
        if (got == 0)
            fail_at_name("it shrank while it was read");
        buffered += (size_t)got;
        left -= got;
    }
}

/* The data of a file without its holes: for each piece a line, and its bytes. */
static void put_pieces(int file, long long size)
{
    char line[64];
    for (long long at = 0; at < size;) {
        long long start = lseek(file, at, SEEK_DATA);
        if (start < 0 && errno == ENXIO) /* nothing but a hole is left */
            break;
        long long stop = start < 0 ? -1 : lseek(file, start, SEEK_HOLE);
        if (stop < 0) { /* its file system knows of no holes */
            start = at;
            stop = size;
        }
        if (start > size)
            start = size;
        at = stop < size ? stop : size;
        if (at > start) {
            put(line, (size_t)snprintf(line, sizeof line, "%lld %lld\n", start, at - start));
            if (lseek(file, start, SEEK_SET) < 0)
                fail_at_name(strerror(errno));
            put_content(file, at - start);
        }
    }
    put("0 0\n", 4);
}

/* Files with several names that were packed, in a hash table. */
static struct named {
    char *name;
    dev_t device;
    ino_t inode;
    long long size, mtime;
} *table;
static size_t table_size, table_used;

static struct named *slot_for(const struct named *wanted)
{
    size_t at = (wanted->inode * 0x9e3779b97f4a7c15ULL ^ wanted->device) % table_size;
    while (table[at].name &&
           (table[at].inode != wanted->inode || table[at].device != wanted->device ||
            table[at].size != wanted->size || table[at].mtime != wanted->mtime))
        at = (at + 1) % table_size;
    return &table[at];
}

static void grow_table(void)
{
    struct named *old = table;
    size_t count = table_size;
    table_size = count ? count * 2 : 256;
    table = calloc(table_size, sizeof *table);
    if (!table)
        fail_at_name(strerror(errno));
    for (size_t i = 0; i < count; i++)
        if (old[i].name)
            *slot_for(&old[i]) = old[i];
    free(old);
}

/* The name by which a file was packed before; NULL where this is its first. */
static const char *packed_before(const struct stat *info)
{
    if (table_used * 2 >= table_size)
        grow_table();
    struct named wanted = {
        .device = info->st_dev,
        .inode = info->st_ino,
        .size = info->st_size,
        .mtime = info->st_mtim.tv_sec * 1000000000LL + info->st_mtim.tv_nsec,
    };
    struct named *found = slot_for(&wanted);
    if (found->name)
        return found->name;
    wanted.name = strdup(name);
    if (!wanted.name)
        fail_at_name(strerror(errno));
    *found = wanted;
    table_used++;
    return NULL;
}

/* Takes an open file, which may be another thing than it was when it was looked at. */
static void pack_file(int file, const char *base)
{
    struct stat info;
    const char *before = NULL;
    if (file < 0 || fstat(file, &info) < 0)
        fail_at_name(strerror(errno));
    if (S_ISREG(info.st_mode) && *name && info.st_nlink > 1)
        before = packed_before(&info);
    if (!S_ISREG(info.st_mode)) {
        put_record('s', &info, 0, NO_FILE);
    } else if (before) {
        put_record('k', &info, 0, before);
    } else if (info.st_blocks * 512LL < info.st_size) {
        put_record('h', &info, info.st_size, base);
        put_pieces(file, info.st_size);
    } else {
        put_record('f', &info, info.st_size, base);
        put_content(file, info.st_size);
    }
    close(file);
}

/* True for a folder that is still to be walked. */
static bool pack_one(int parent, const char *entry)
{
    struct stat info;
    char to[PATH_MAX] = "";
    if (fstatat(parent, entry, &info, AT_SYMLINK_NOFOLLOW) < 0)
        fail_at_name(strerror(errno));
    if (strlen(name) > LONGEST_PATH) {
        name[LONGEST_PATH] = 0;
        put_record('s', &info, 0, TOO_LONG);
        return false;
    }
    if (S_ISDIR(info.st_mode)) {
        put_record('d', &info, 0, "");
    } else if (S_ISLNK(info.st_mode)) {
        if (readlinkat(parent, entry, to, sizeof to - 1) < 0)
            fail_at_name(strerror(errno));
        put_record('l', &info, 0, to);
    } else if (S_ISREG(info.st_mode)) {
        pack_file(openat(parent, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), "");
    } else {
        put_record('s', &info, 0, NO_FILE);
    }
    return S_ISDIR(info.st_mode);
}

/* There is always room: no folder with a longer name than LONGEST_PATH is entered. */
static void append_name(size_t length, const char *entry)
{
    static_assert(LONGEST_PATH + 1 + NAME_MAX < sizeof name, "a name has no room");
    snprintf(name + length, sizeof name - length, "%s%s", length ? "/" : "", entry);
}

/* A folder's entries first, then what is in its folders: the other side has to open each folder
 * once only. One descriptor a level is held; the length of a name bounds them. */
static void pack_folder(int folder)
{
    struct names names;
    size_t length = strlen(name), folders = 0;
    if (!list_names(folder, &names))
        fail_at_name(strerror(errno));
    for (size_t i = 0; i < names.count; i++) {
        append_name(length, names.all[i]);
        char *entry = names.all[i];
        if (pack_one(folder, entry)) {
            names.all[i] = names.all[folders];
            names.all[folders++] = entry;
        }
        name[length] = 0;
    }
    for (size_t i = 0; i < folders; i++) {
        append_name(length, names.all[i]);
        int deeper = open_folder(folder, names.all[i]);
        if (deeper < 0)
            fail_at_name(strerror(errno));
        pack_folder(deeper);
        close(deeper);
        name[length] = 0;
    }
    free_names(&names);
}

/* A link is followed only to a place beside it: it may be an agent's. */
static void refuse_link(void)
{
    char to[PATH_MAX] = "";
    if (readlink(source, to, sizeof to - 1) > 0 && !stays_inside(to, 0))
        fail_and_exit("%s: a link to %s, which is not followed", source, to);
}

void run_pack(char *payload, size_t size)
{
    static struct fields done;
    struct stat info;
    char **words;
    if (split_fields(payload, size, &words) != 1)
        fail_and_exit("the request cannot be read");
    source = words[0];
    refuse_link();
    if (stat(source, &info) < 0)
        fail_at_name(strerror(errno));
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))
        fail_at_name("neither a file nor a folder");
    int file = open(source, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        fail_at_name(strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        put_record('d', &info, 0, "");
        pack_folder(file);
    } else {
        const char *slash = strrchr(source, '/');
        pack_file(file, slash ? slash + 1 : source);
    }
    put("e 0 0 0 0 0 0 0\n", 16);
    flush();
    add_pair(&done, "done", "1");
    report_and_exit(&done, -1);
}
