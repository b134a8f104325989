"""The pages of unsubscribing, in the languages of the templates that ship. Plain HTML: no script, picture or link."""

import base64
import hashlib
import html
from dataclasses import dataclass
from typing import Final

LANGUAGES: Final = ("en", "fr", "vi", "ar")
_RIGHT_TO_LEFT: Final = frozenset({"ar"})

STYLE: Final = (
    "body{margin:0;background:#f4f5f7;color:#1d2433;font:1.125rem/1.6 system-ui,sans-serif}"
    "main{max-width:32rem;margin:10vh auto;padding:2rem;background:#fff;border-radius:.5rem}"
    "h1{margin:0 0 1rem;font-size:1.5rem;line-height:1.3}"
    ".from{margin:0 0 1.5rem;color:#4a5568}"
    "button{font:inherit;padding:.75rem 1.5rem;border:0;border-radius:.375rem;background:#1a4fa3;color:#fff}"
    "button:focus-visible{outline:.2rem solid #f0a500;outline-offset:.2rem}"
)
# Lets this style alone into the page, by the Content-Security-Policy.
STYLE_HASH: Final = "sha256-" + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

ASK, DONE, BAD_LINK, UNCHANGED, LATER = "ask", "done", "bad_link", "unchanged", "later"

_BUTTON: Final = {"en": "Unsubscribe", "fr": "Se désabonner", "vi": "Hủy đăng ký", "ar": "إلغاء الاشتراك"}
# Page to language to heading and sentence.
_TEXTS: Final = {
    ASK: {
        "en": (
            "Stop these letters?",
            "You will get no more letters of this kind. Nothing changes until you press the button.",
        ),
        "fr": (
            "Ne plus recevoir ces courriers ?",
            "Vous ne recevrez plus de courriers de ce type. Rien ne change tant que vous n’avez pas appuyé sur le "
            "bouton.",
        ),
        "vi": (
            "Ngừng nhận những thư này?",
            "Bạn sẽ không nhận thư loại này nữa. Chưa có gì thay đổi cho đến khi bạn bấm nút.",
        ),
        "ar": (
            "هل تريد إيقاف هذه الرسائل؟",
            "لن تصلك رسائل من هذا النوع بعد الآن. لن يتغير شيء حتى تضغط على الزر.",
        ),
    },
    DONE: {
        "en": (
            "You are unsubscribed",
            "You will get no more letters of this kind. One that is on its way already may still arrive.",
        ),
        "fr": (
            "Votre désabonnement est enregistré",
            "Vous ne recevrez plus de courriers de ce type. Un courrier déjà parti peut encore arriver.",
        ),
        "vi": (
            "Bạn đã hủy đăng ký",
            "Bạn sẽ không nhận thư loại này nữa. Thư đã gửi đi trước đó vẫn có thể đến.",
        ),
        "ar": ("تم إلغاء اشتراكك", "لن تصلك رسائل من هذا النوع بعد الآن. قد تصل رسالة أُرسلت من قبل."),
    },
    BAD_LINK: {
        "en": (
            "This link does not work",
            "It may have been cut off on its way. Open the whole link from the letter again.",
        ),
        "fr": (
            "Ce lien ne fonctionne pas",
            "Il a peut-être été coupé en chemin. Ouvrez-le de nouveau, en entier, depuis le courrier.",
        ),
        "vi": (
            "Liên kết này không hoạt động",
            "Có thể liên kết đã bị cắt. Hãy mở lại toàn bộ liên kết từ thư.",
        ),
        "ar": ("هذا الرابط لا يعمل", "ربما قُطع الرابط في الطريق. افتحه كاملاً من الرسالة مرة أخرى."),
    },
    UNCHANGED: {
        "en": ("Nothing was changed", "Open the link from the letter again and press the button."),
        "fr": ("Rien n’a été changé", "Ouvrez de nouveau le lien du courrier et appuyez sur le bouton."),
        "vi": ("Chưa có gì thay đổi", "Hãy mở lại liên kết trong thư và bấm nút."),
        "ar": ("لم يتغير شيء", "افتح الرابط من الرسالة مرة أخرى واضغط على الزر."),
    },
    LATER: {
        "en": ("Please try again in a minute", "Nothing was changed yet."),
        "fr": ("Veuillez réessayer dans une minute", "Rien n’a encore été changé."),
        "vi": ("Vui lòng thử lại sau một phút", "Chưa có gì thay đổi."),
        "ar": ("يرجى المحاولة بعد دقيقة", "لم يتغير شيء بعد."),
    },
}


@dataclass(frozen=True)
class Page:
    """A whole page and its language."""

    language: str
    body: bytes


def page(which: str, language: str, from_name: str = "") -> Page:
    """One of ASK, DONE, BAD_LINK, UNCHANGED, LATER. from_name: the sender's, shown as it is; nothing if empty."""
    heading, sentence = _TEXTS[which][language]
    direction = "rtl" if language in _RIGHT_TO_LEFT else "ltr"
    name = f'<p class="from" dir="auto">{html.escape(from_name)}</p>' if from_name else ""
    # The form posts what a mail program would (RFC 8058 3.1), to this very address.
    form = (
        '<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">'
        f'<button type="submit">{_BUTTON[language]}</button></form>'
        if which == ASK
        else ""
    )
    text = (
        f'<!DOCTYPE html><html lang="{language}" dir="{direction}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{STYLE}</style></head>"
        f"<body><main>{name}<h1>{heading}</h1><p>{sentence}</p>{form}</main></body></html>\n"
    )
    return Page(language, text.encode())


def language_for(accept_language: str, locale: str = "") -> str:
    """The reader's language by Accept-Language (RFC 9110 12.5.4), else that of the letter, else English."""
    wishes = []
    for place, part in enumerate(accept_language[:1000].split(",")):
        tag, _, parameters = part.partition(";")
        wishes.append((-_quality(parameters), place, tag.strip().casefold().partition("-")[0]))
    for worth, _, language in sorted(wishes):
        if worth < 0 and language in LANGUAGES:
            return language
    plain = locale.casefold().partition("-")[0]
    return plain if plain in LANGUAGES else "en"


def _quality(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip().casefold() != "q":
        return 1.0
    try:
        return min(1.0, max(0.0, float(value)))
    except ValueError:
        return 0.0
