"""Two small conversations in the format of locomo_dev.json, written for the tests."""

from __future__ import annotations

from typing import Any

CONVERSATIONS: list[dict[str, Any]] = [
    {
        "conversation": 0,
        "turns": [
            {
                "id": f"D1:{number}",
                "session": 1,
                "session_time": "9:00 am on 3 March, 2025",
                "speaker": speaker,
                "text": text,
                **({"image_caption": "a red kayak on a beach"} if number == 3 else {}),
            }
            for number, (speaker, text) in enumerate(
                [
                    ("Ruth", "I finally bought the kayak that I told you about."),
                    ("Emil", "Which colour is it?"),
                    ("Ruth", "See for yourself."),
                    ("Emil", "Lovely. My brother Anton moved to Lisbon last week."),
                    ("Ruth", "Then we can visit him in summer."),
                ],
                start=1,
            )
        ],
        "questions": [
            {"question": "What did Ruth buy?", "category": 4, "evidence": ["D1:1"]},
            {"question": "Where does Anton live now?", "category": 1, "evidence": ["D1:4"]},
            {"question": "What is the name of Ruth's cat?", "category": 5, "evidence": []},
        ],
    },
    {
        "conversation": 1,
        "turns": [
            {"id": "D1:1", "session": 1, "speaker": "Ida", "text": "The bakery opens at six on Sundays."},
            {"id": "D1:2", "session": 1, "speaker": "Per", "text": "Good to know, I will bring rolls."},
        ],
        "questions": [{"question": "When does the bakery open?", "category": 2, "evidence": ["D1:1"]}],
    },
]
