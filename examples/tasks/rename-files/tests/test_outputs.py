import unittest
from pathlib import Path

PHOTOS = Path("/app/photos")

RENAMED = {
    "2023-04-07_harbour_012.jpg": "Harbour 2023-4-7 (12).JPG",
    "2023-12-24_harbour_001.jpg": "Harbour 2023-12-24 (1).jpeg",
    "2022-01-31_old-mole_105.jpg": "Old Mole 2022-1-31 (105).jpg",
    "2024-10-02_old-north-pier_007.jpg": "Old North Pier 2024-10-2 (7).JPEG",
    "2021-11-11_lock_040.png": "Lock 2021-11-11 (40).png",
}
KEPT = {"notes.txt": "notes.txt", "Harbour (3).JPG": "Harbour (3).JPG"}


class TestPhotos(unittest.TestCase):
    def test_the_folder_holds_the_new_names_and_no_others(self):
        self.assertEqual(sorted(p.name for p in PHOTOS.iterdir()), sorted({**RENAMED, **KEPT}))

    def test_each_renamed_file_has_its_own_content(self):
        for new, old in RENAMED.items():
            with self.subTest(file=new):
                self.assertEqual((PHOTOS / new).read_text(), old + "\n")
