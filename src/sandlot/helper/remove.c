/* Removal of a directory tree of any depth, without following links. */
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a directory, making it accessible first if only its mode stands in the way. */
static int open_dir(int parent, const char *name)
{
	int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(parent, name, flags);
	struct stat status;
	if (fd < 0 && errno == EACCES) {
		if (fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(status.st_mode))
			return -1;
		if (fchmodat(parent, name, 0700, 0))
			return -1;
		return openat(parent, name, flags);
	}
	if (fd >= 0 && !fstat(fd, &status) && (status.st_mode & 0700) != 0700)
		fchmod(fd, 0700); /* if that is refused, so will be what needs it */
	return fd;
}

/* Removes a file, a link or an empty directory; returns 0 or an errno. */
static int remove_one(int parent, const char *name)
{
	if (!unlinkat(parent, name, 0))
		return 0;
	int error = errno;
	if ((error != EISDIR && error != EPERM) || !unlinkat(parent, name, AT_REMOVEDIR))
		return error == EISDIR || error == EPERM ? 0 : error;
	return errno == ENOTDIR ? error : errno;
}

/* Moves a directory that is not empty to the top of the tree under a fresh name. */
static int lift(int parent, const char *name, int top)
{
	static unsigned long serial;
	int fd = open_dir(parent, name); /* a rename needs write access to it */
	if (fd < 0)
		return errno;
	close(fd);
	char fresh[64];
	snprintf(fresh, sizeof fresh, ".removing-%ld-%lu", (long)getpid(), serial++);
	return renameat(parent, name, top, fresh) ? errno : 0;
}

static bool is_dot(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Empties a directory, lifting what is not empty; returns 0 or the first errno. */
static int empty(int dir, int top)
{
	int error = 0;
	DIR *entries = fdopendir(dir);
	if (!entries) {
		close(dir);
		return errno;
	}
	struct dirent *entry;
	while ((entry = readdir(entries))) {
		if (is_dot(entry->d_name))
			continue;
		int failed = remove_one(dir, entry->d_name);
		if (failed == ENOTEMPTY || failed == EEXIST)
			failed = lift(dir, entry->d_name, top);
		if (failed && failed != ENOENT && !error)
			error = failed;
	}
	closedir(entries);
	return error;
}

/* Empties each directory at the top; `moved` tells whether there was one. */
static int empty_children(int top, bool *moved)
{
	int error = 0;
	int dir = open_dir(top, ".");
	DIR *entries = dir < 0 ? NULL : fdopendir(dir);
	if (!entries)
		return errno;
	struct dirent *entry;
	while ((entry = readdir(entries))) {
		if (is_dot(entry->d_name))
			continue;
		int failed = remove_one(dir, entry->d_name);
		if (failed == ENOTEMPTY || failed == EEXIST) {
			int child = open_dir(dir, entry->d_name);
			failed = child < 0 ? errno : empty(child, top);
			*moved = true;
			if (!failed)
				failed = remove_one(dir, entry->d_name);
		}
		if (failed && failed != ENOENT && !error)
			error = failed;
	}
	closedir(entries);
	return error;
}

/* No recursion: each pass lifts what is two levels deep to the first, so that neither the
 * stack nor the number of descriptors grows with a tree that was made deep on purpose. */
int remove_tree(int dir_fd, const char *path)
{
	int error = remove_one(dir_fd, path);
	if (error == ENOENT)
		return 0;
	if (error != ENOTEMPTY && error != EEXIST)
		return error;
	int top = open_dir(dir_fd, path);
	if (top < 0)
		return errno;
	bool moved = true;
	for (error = 0; moved && !error;) {
		moved = false;
		error = empty_children(top, &moved);
	}
	close(top);
	return error ? error : remove_one(dir_fd, path);
}
