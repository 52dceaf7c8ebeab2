/* Processes and their children, read from /proc. */
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct process {
	pid_t pid, parent;
};

struct processes {
	struct process *items;
	size_t count, capacity;
};

static void append(struct processes *list, pid_t pid, pid_t parent)
{
	if (list->count == list->capacity) {
		list->capacity = list->capacity ? 2 * list->capacity : 64;
		list->items = need_memory(
			realloc(list->items, list->capacity * sizeof *list->items));
	}
	list->items[list->count++] = (struct process){pid, parent};
}

/* Reads a small file of /proc; returns its size, or -1. */
static ssize_t read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	size_t have = 0;
	ssize_t got;
	while (have < size - 1 && (got = read(fd, text + have, size - 1 - have)) > 0)
		have += (size_t)got;
	close(fd);
	text[have] = '\0';
	return (ssize_t)have;
}

static pid_t parent_of(pid_t pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	if (read_file(path, text, sizeof text) < 0)
		return -1;
	const char *name_end = strrchr(text, ')'); /* the name may hold anything */
	int parent;
	return name_end && sscanf(name_end + 1, " %*c %d", &parent) == 1 ? parent : -1;
}

static pid_t pid_from_name(const char *name)
{
	char *end;
	long pid = strtol(name, &end, 10);
	return *end || pid <= 0 ? -1 : (pid_t)pid;
}

/* -------------------------------------------- children, where the kernel lists them */

static bool kernel_lists_children(void)
{
	static int known = -1;
	if (known < 0) {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
		known = access(path, R_OK) == 0;
	}
	return known;
}

/* Appends the children of one thread; a fork bomb's list may be long. */
static void append_listed(struct processes *list, const char *path, pid_t parent)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return; /* it has ended meanwhile, and its children are its reaper's now */
	FILE *file = need_memory(fdopen(fd, "r"));
	int pid;
	while (fscanf(file, "%d", &pid) == 1)
		append(list, pid, parent);
	fclose(file);
}

static void append_children_of_threads(struct processes *list, pid_t parent)
{
	char path[300];
	snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
	DIR *threads = opendir(path);
	if (!threads)
		return;
	struct dirent *entry;
	while ((entry = readdir(threads))) {
		if (pid_from_name(entry->d_name) < 0)
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)parent,
			 entry->d_name);
		append_listed(list, path, parent);
	}
	closedir(threads);
}

/* ------------------------------------------------------ children, where it does not */

static struct processes all_processes(void)
{
	struct processes all = {0};
	DIR *proc = opendir("/proc");
	if (!proc)
		return all;
	struct dirent *entry;
	while ((entry = readdir(proc))) {
		pid_t pid = pid_from_name(entry->d_name);
		if (pid > 0)
			append(&all, pid, parent_of(pid));
	}
	closedir(proc);
	return all;
}

/* ------------------------------------------------------------------- the tree */

static void remove_skipped(struct processes *tree, size_t from, pid_predicate *skip)
{
	size_t kept = from;
	for (size_t i = from; i < tree->count; i++)
		if (!skip(tree->items[i].pid))
			tree->items[kept++] = tree->items[i];
	tree->count = kept;
}

/* The descendants of a process, parents before children. */
static struct processes descendants(pid_t root, pid_predicate *skip)
{
	struct processes tree = {0};
	bool listed = kernel_lists_children();
	struct processes all = listed ? (struct processes){0} : all_processes();
	pid_t parent = root;
	for (size_t next = 0;; next++) {
		size_t before = tree.count;
		if (listed)
			append_children_of_threads(&tree, parent);
		for (size_t i = 0; i < all.count; i++)
			if (all.items[i].parent == parent)
				append(&tree, all.items[i].pid, parent);
		if (skip)
			remove_skipped(&tree, before, skip);
		if (next == tree.count)
			break;
		parent = tree.items[next].pid;
	}
	free(all.items);
	return tree;
}

/* Signals a process only if it still is what was seen: its number may have been given to a
 * stranger meanwhile. A descriptor pins it before its parent is looked at again. */
static void signal_process(struct process seen, pid_t root, int signal)
{
	int fd = (int)syscall(SYS_pidfd_open, seen.pid, 0);
	if (fd < 0) {
		if (errno == ENOSYS || errno == EPERM)
			kill(seen.pid, signal);
		return;
	}
	pid_t parent = parent_of(seen.pid);
	if (parent == seen.parent || parent == root)
		syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
	close(fd);
}

unsigned tree_signal(pid_t root, int signal, pid_predicate *skip)
{
	struct processes tree = descendants(root, skip);
	for (size_t i = 0; i < tree.count; i++)
		signal_process(tree.items[i], root, signal);
	unsigned count = (unsigned)tree.count;
	free(tree.items);
	return count;
}
