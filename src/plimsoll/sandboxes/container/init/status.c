/* How the sandbox is: its processes, how often the kernel killed one for memory, its disk. */
#include "plimsoll.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The value of `oom_kill` in a control group's file; false where there is none. */
static bool oom_kills_in(const char *path, char value[24])
{
    static const char key[] = "oom_kill ";
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, sizeof key - 1))
            return sscanf(line + sizeof key - 1, "%23[0-9]", value) == 1;
    }
    return false;
}

/* What may still be written to the root, and how large its disk is; nothing where nobody knows. */
static void add_disk(struct fields *fields)
{
    struct statvfs disk;
    if (statvfs("/", &disk) || !disk.f_blocks)
        return;
    bool no_files = disk.f_files && !disk.f_favail;
    unsigned long long size = disk.f_frsize;
    add_count(fields, "disk_free", no_files ? 0 : disk.f_bavail * size);
    add_count(fields, "disk_size", disk.f_blocks * size);
}

void send_status(uint32_t number)
{
    static struct fields fields;
    char kills[24] = "";
    fields.used = 0;
    long processes = count_processes();
    if (processes < 0)
        add_pair(&fields, "error", "/proc cannot be read");
    else
        add_count(&fields, "processes", (unsigned long long)processes);
    if (!oom_kills_in("/sys/fs/cgroup/memory.events", kills))
        oom_kills_in("/sys/fs/cgroup/memory/memory.oom_control", kills);
    add_pair(&fields, "oom_kills", kills);
    add_disk(&fields);
    send_frame(END, number, fields.bytes, fields.used);
}
